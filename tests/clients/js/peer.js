// kafkajs behind a pipe: each line on standard input is a JSON object with "do", each line on standard output its
// answer. Bytes travel as ISO 8859-1 text. kafkajs has no consumer without a group, so reading goes through the classes
// underneath it: Cluster finds the leader, Broker fetches and decodes.

const readline = require('readline')
const { Kafka, CompressionTypes, ConfigResourceTypes, logLevel } = require('kafkajs')
const Cluster = require('kafkajs/src/cluster')
const socketFactory = require('kafkajs/src/network/socketFactory')
const { createLogger, LEVELS } = require('kafkajs/src/loggers')
const LoggerConsole = require('kafkajs/src/loggers/console')

const bootstrap = process.argv[2]
const retry = { retries: 2 }
const kafka = new Kafka({ clientId: 'kafkajs-peer', brokers: [bootstrap], logLevel: logLevel.NOTHING, retry })
const bytes = text => (text === null ? null : Buffer.from(text, 'latin1'))
const text = buffer => (buffer === null || buffer === undefined ? null : Buffer.from(buffer).toString('latin1'))

// kafkajs keeps headers in an object: a name that repeats has an array of values.
const headerObject = headers => {
  const object = {}
  for (const [name, value] of headers) {
    object[name] = name in object ? [].concat(object[name], [bytes(value)]) : bytes(value)
  }
  return object
}
const headerPairs = object =>
  Object.entries(object).flatMap(([name, values]) => [].concat(values).map(value => [name, text(value)]))

async function produce({ topic, partition, codec, idempotent, records }) {
  const producer = kafka.producer({ idempotent, allowAutoTopicCreation: true, createPartitioner: () => () => partition })
  await producer.connect()
  const compression = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP }[codec]
  const messages = records.map(record => ({
    partition,
    key: bytes(record.key),
    value: bytes(record.value),
    headers: headerObject(record.headers),
    timestamp: String(record.timestamp),
  }))
  const [sent] = await producer.send({ topic, acks: -1, compression, messages })
  await producer.disconnect()
  return Number(sent.baseOffset)
}

async function consume({ topic, partition, offset, count }) {
  const cluster = new Cluster({
    logger: createLogger({ level: LEVELS.NOTHING, logCreator: LoggerConsole }),
    socketFactory: socketFactory(),
    brokers: [bootstrap],
    clientId: 'kafkajs-peer',
    connectionTimeout: 5000,
    requestTimeout: 30000,
    metadataMaxAge: 300000,
    allowAutoTopicCreation: false,
    offsets: new Map(),
    retry,
  })
  await cluster.connect()
  await cluster.addTargetTopic(topic)
  const { leader } = cluster.findTopicPartitionMetadata(topic).find(({ partitionId }) => partitionId === partition)
  const broker = await cluster.findBroker({ nodeId: String(leader) })
  const records = []
  let next = offset
  while (records.length < count) {
    const partitions = [{ partition, fetchOffset: String(next), maxBytes: 1048576 }]
    const fetched = await broker.fetch({ maxWaitTime: 1000, minBytes: 1, topics: [{ topic, partitions }] })
    const { messages } = fetched.responses[0].partitions[0]
    if (messages.length === 0) break
    for (const message of messages) {
      if (Number(message.offset) < next) continue
      records.push({
        offset: Number(message.offset),
        timestamp: Number(message.timestamp),
        key: text(message.key),
        value: text(message.value),
        headers: headerPairs(message.headers),
      })
    }
    next = Number(messages[messages.length - 1].offset) + 1
  }
  await cluster.disconnect()
  return records
}

const refusal = async call => {
  try {
    await call()
    return null
  } catch (error) {
    return error.type || error.errors?.[0]?.type || error.name
  }
}

async function admin({ topic }) {
  const admin = kafka.admin()
  await admin.connect()
  const seen = {}
  const wanted = { topic, numPartitions: 2, configEntries: [{ name: 'retention.ms', value: '86400000' }] }
  seen.created = await admin.createTopics({ topics: [wanted] })
  seen['created again'] = await admin.createTopics({ topics: [wanted] })
  seen.listed = (await admin.listTopics()).includes(topic)
  await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
  const { topics } = await admin.fetchTopicMetadata({ topics: [topic] })
  seen.partitions = topics[0].partitions.map(({ partitionId, leader, isr }) => [partitionId, leader, isr])
  const records = Array.from({ length: 10 }, (_, i) => ({ key: null, value: `v${i}`, headers: [], timestamp: 1000000000000 + i }))
  await produce({ topic, partition: 0, codec: 'none', idempotent: true, records })
  seen.offsets = (await admin.fetchTopicOffsets(topic)).find(({ partition }) => partition === 0)
  seen.atTime = (await admin.fetchTopicOffsetsByTimestamp(topic, 1000000000003)).find(({ partition }) => partition === 0)
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '4' }] })
  seen.trimmed = (await admin.fetchTopicOffsets(topic)).find(({ partition }) => partition === 0)
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
  await admin.alterConfigs({ resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value: '3600000' }] }] })
  const described = await admin.describeConfigs({ resources: [{ ...resource, configNames: ['retention.ms'] }] })
  seen.retention = described.resources[0].configEntries.map(({ configName, configValue }) => [configName, configValue])
  seen.cluster = await admin.describeCluster()
  seen.groups = await refusal(() => admin.listGroups())
  await admin.deleteTopics({ topics: [topic] })
  seen.deleted = !(await admin.listTopics()).includes(topic)
  await admin.disconnect()
  return seen
}

// Two members of a group share a topic of four partitions: records seen, and how many partitions each was given.
async function shareGroup({ topic, group }) {
  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ topics: [{ topic, numPartitions: 4 }] })
  await admin.disconnect()
  const records = Array.from({ length: 10 }, (_, i) => ({ key: null, value: `v${i}`, headers: [], timestamp: i }))
  for (const partition of [0, 1, 2, 3]) await produce({ topic, partition, codec: 'none', idempotent: true, records })
  const members = []
  const count = 4 * records.length
  let seen = 0
  let done
  const all = new Promise(resolve => { done = resolve })
  for (let number = 0; number < 2; number++) {
    const consumer = kafka.consumer({ groupId: group, sessionTimeout: 10000, heartbeatInterval: 500 })
    const member = { consumer, assigned: 0 }
    members.push(member)
    consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
      member.assigned = (payload.memberAssignment[topic] || []).length
    })
    await consumer.connect()
    await consumer.subscribe({ topic, fromBeginning: true })
    await consumer.run({
      eachMessage: async () => {
        seen += 1
        if (seen >= count) done()
      },
    })
  }
  await all
  while (members.some(member => member.assigned !== 2)) await new Promise(resolve => setTimeout(resolve, 50))
  const assigned = members.map(member => member.assigned)
  for (const member of members) await member.consumer.disconnect()
  return { seen, assigned }
}

const verbs = { produce, consume, admin, shareGroup }

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const order = JSON.parse(line)
    let answer
    try {
      answer = { ok: await verbs[order.do](order) }
    } catch (error) {
      answer = { error: `${error.name}: ${error.message}` }
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
}

main().then(() => process.exit(0))
