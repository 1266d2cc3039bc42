// Transactions of kafkajs behind a pipe: each line on standard input is a JSON object with "do", each line on standard
// output its answer. Producers have names; there is one consumer at a time, a member of a group.

const readline = require('readline')
const { Kafka, logLevel } = require('kafkajs')

const kafka = new Kafka({ clientId: 'transactions', brokers: [process.argv[2]], logLevel: logLevel.NOTHING })
const producers = {}
const open = {}
let member = null

// A consumer hands over what it reads one by one; what is not asked for waits.
async function consumerOf(groupId, topic, partition) {
  const consumer = kafka.consumer({ groupId, maxWaitTimeInMs: 100, retry: { retries: 2 } })
  const state = { consumer, groupId, topic, waiting: [], positions: {} }
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ partition: from, message }) => {
      if (partition === undefined || from === partition) {
        state.waiting.push({ partition: from, offset: Number(message.offset), value: message.value.toString() })
      }
    },
  })
  return state
}

const pause = () => new Promise(resolve => setTimeout(resolve, 10))

async function take(state, isEnough) {
  const taken = []
  const deadline = Date.now() + 40000
  while (!isEnough(taken) && Date.now() < deadline) {
    if (state.waiting.length === 0) {
      await pause()
      continue
    }
    const next = state.waiting.shift()
    state.positions[next.partition] = next.offset + 1
    taken.push(next.value)
  }
  return taken
}

const verbs = {
  async open({ name, transactionalId }) {
    producers[name] = kafka.producer({ transactionalId, maxInFlightRequests: 1, idempotent: true })
    await producers[name].connect()
    // kafkajs asks for its producer id when it begins, so a new instance fences the old one only there.
    open[name] = await producers[name].transaction()
  },
  async begin({ name }) {
    open[name] = open[name] && open[name].isActive() ? open[name] : await producers[name].transaction()
  },
  async send({ name, topic, partition, value }) {
    await open[name].send({ topic, messages: [{ partition, value }] })
  },
  async commit({ name }) {
    await open[name].commit()
  },
  async abort({ name }) {
    await open[name].abort()
  },
  async consume({ group, topic, count }) {
    member = member || (await consumerOf(group, topic))
    return take(member, taken => taken.length >= count)
  },
  async sendOffsets({ name }) {
    const partitions = Object.entries(member.positions).map(([partition, offset]) => ({
      partition: Number(partition),
      offset: String(offset),
    }))
    const topics = [{ topic: member.topic, partitions }]
    await open[name].sendOffsets({ consumerGroupId: member.groupId, topics })
  },
  async leave() {
    await member.consumer.disconnect()
    member = null
  },
  async committed({ topic, partition }) {
    const reader = await consumerOf(`reader-of-${topic}-${partition}-${Date.now()}`, topic, partition)
    const found = await take(reader, taken => taken[taken.length - 1] === 'end')
    await reader.consumer.disconnect()
    return found
  },
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const order = JSON.parse(line)
    try {
      const ok = await verbs[order.do](order)
      console.log(JSON.stringify({ ok: ok === undefined ? null : ok }))
    } catch (error) {
      console.log(JSON.stringify({ error: `${error.name} ${error.type || ''} ${error.message}` }))
    }
  }
  process.exit(0)
}

main()
