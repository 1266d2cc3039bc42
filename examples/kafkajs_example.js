// kafkajs: create a topic, produce, and see how far it goes. Its consumer joins a group, which Moldau does not serve yet.

const { Kafka, CompressionTypes, logLevel } = require('kafkajs')

const bootstrap = process.argv[2] || process.env.MOLDAU_BOOTSTRAP || '127.0.0.1:9092'
const topic = 'kafkajs-example'

async function main() {
  const kafka = new Kafka({ clientId: 'example', brokers: [bootstrap], logLevel: logLevel.ERROR })

  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ topics: [{ topic, numPartitions: 1 }] })

  const producer = kafka.producer({ idempotent: true })
  await producer.connect()
  const messages = Array.from({ length: 10 }, (_, number) => ({ key: `key-${number}`, value: `hello ${number}` }))
  const [sent] = await producer.send({ topic, messages, compression: CompressionTypes.GZIP })
  console.log(`delivered from offset ${sent.baseOffset}`)
  await producer.disconnect()

  for (const { partition, low, high } of await admin.fetchTopicOffsets(topic)) {
    console.log(`partition ${partition}: offsets ${low} to ${high}`)
  }
  await admin.disconnect()
}

main().catch(error => {
  console.error(error.message)
  process.exit(1)
})
