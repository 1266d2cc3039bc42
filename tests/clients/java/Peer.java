// Kafka's Java clients behind a pipe, so that one JVM serves a whole test run. Each line on standard input is a JSON
// object with "do"; each line on standard output is its answer. Bytes travel as ISO 8859-1 text.
// Tools.java runs the command-line tools.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.common.utils.Exit;

public class Peer {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Duration PATIENCE = Duration.ofSeconds(20);
    static String bootstrap;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        PrintStream answers = System.out;
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = orders.readLine()) != null; ) {
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                answer.put("ok", obey(JSON.readTree(line)));
            } catch (Throwable error) {
                answer.put("error", nameOf(error) + ": " + error.getMessage());
            }
            answers.println(JSON.writeValueAsString(answer));
            answers.flush();
        }
    }

    static Object obey(JsonNode order) throws Exception {
        switch (order.get("do").asText()) {
            case "produce": return produce(order);
            case "consume": return consume(order);
            case "positions": return positions(order);
            case "admin": return admin(order.get("topic").asText());
            case "tool": return Tools.run(order);
            default: throw new IllegalArgumentException("cannot do " + order.get("do"));
        }
    }

    // -- producer and consumer ----------------------------------------------------------------------------------------

    static Object produce(JsonNode order) throws Exception {
        Map<String, Object> config = config(order);
        config.putIfAbsent("linger.ms", 20);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (Producer<byte[], byte[]> producer =
                new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (JsonNode record : order.get("records")) {
                ProducerRecord<byte[], byte[]> made = new ProducerRecord<>(order.get("topic").asText(),
                    order.get("partition").asInt(), record.get("timestamp").asLong(),
                    bytes(record.get("key")), bytes(record.get("value")));
                for (JsonNode header : record.get("headers")) {
                    made.headers().add(header.get(0).asText(), bytes(header.get(1)));
                }
                sent.add(producer.send(made));
            }
        }
        List<Long> offsets = new ArrayList<>();
        for (Future<RecordMetadata> future : sent) offsets.add(future.get().offset());
        return offsets;
    }

    static Consumer<byte[], byte[]> consumer(JsonNode order) {
        Map<String, Object> config = config(order);
        config.putIfAbsent("fetch.max.wait.ms", 50);  // closing a consumer waits for its last fetch
        return new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static Object consume(JsonNode order) {
        TopicPartition where = where(order);
        List<Object> records = new ArrayList<>();
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        try (Consumer<byte[], byte[]> consumer = consumer(order)) {
            consumer.assign(List.of(where));
            consumer.seek(where, order.get("offset").asLong());
            while (records.size() < order.get("count").asInt() && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    records.add(plain(record));
                }
            }
        }
        return records;
    }

    static Map<String, Object> plain(ConsumerRecord<byte[], byte[]> record) {
        List<Object> headers = new ArrayList<>();
        for (Header header : record.headers()) headers.add(Arrays.asList(header.key(), text(header.value())));
        Map<String, Object> plain = new LinkedHashMap<>();
        plain.put("offset", record.offset());
        plain.put("timestamp", record.timestamp());
        plain.put("timestampType", record.timestampType().name);
        plain.put("key", text(record.key()));
        plain.put("value", text(record.value()));
        plain.put("headers", headers);
        return plain;
    }

    static Object positions(JsonNode order) {
        TopicPartition where = where(order);
        Map<String, Object> found = new LinkedHashMap<>();
        try (Consumer<byte[], byte[]> consumer = consumer(order)) {
            consumer.assign(List.of(where));
            found.put("beginning", consumer.beginningOffsets(List.of(where)).get(where));
            found.put("end", consumer.endOffsets(List.of(where)).get(where));
            OffsetAndTimestamp atTime =
                consumer.offsetsForTimes(Map.of(where, order.get("timestamp").asLong())).get(where);
            found.put("atTime", atTime == null ? null : List.of(atTime.offset(), atTime.timestamp()));
            consumer.seekToBeginning(List.of(where));
            found.put("first", consumer.position(where));
            consumer.seekToEnd(List.of(where));
            found.put("last", consumer.position(where));
            found.put("partitions", consumer.partitionsFor(where.topic()).size());
            found.put("listed", consumer.listTopics().containsKey(where.topic()));
        }
        return found;
    }

    // -- Admin: one tour, every answer under the name of its call -------------------------------------------------------

    static Object admin(String topic) throws Exception {
        Map<String, Object> seen = new LinkedHashMap<>();
        try (Admin admin = Admin.create(config(null))) {
            topics(admin, topic, seen);
            configs(admin, topic, seen);
            records(admin, topic, seen);
            cluster(admin, topic, seen);
            notServed(admin, seen);
            Uuid id = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).topicId();
            admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all().get();
            seen.put("deleted", !admin.listTopics().names().get().contains(topic));
            seen.put("describe deleted", error(() -> admin.describeTopics(List.of(topic)).allTopicNames().get()));
            seen.put("delete deleted", error(() -> admin.deleteTopics(List.of(topic)).all().get()));
        }
        return seen;
    }

    static void topics(Admin admin, String topic, Map<String, Object> seen) throws Exception {
        NewTopic wanted = new NewTopic(topic, 3, (short) 1).configs(Map.of("retention.ms", "86400000"));
        admin.createTopics(List.of(wanted), new CreateTopicsOptions().validateOnly(true)).all().get();
        seen.put("validated only", !admin.listTopics().names().get().contains(topic));
        CreateTopicsResult created = admin.createTopics(List.of(wanted));
        seen.put("created partitions", created.numPartitions(topic).get());
        seen.put("created replication", created.replicationFactor(topic).get());
        seen.put("created retention", created.config(topic).get().get("retention.ms").value());
        seen.put("create again", error(() -> admin.createTopics(List.of(wanted)).all().get()));
        seen.put("too many replicas", error(
            () -> admin.createTopics(List.of(new NewTopic(topic + "-three", 1, (short) 3))).all().get()));
        seen.put("bad name", error(() -> admin.createTopics(List.of(new NewTopic("no/slash", 1, (short) 1))).all().get()));
        seen.put("listed", admin.listTopics().names().get().contains(topic));
        TopicDescription byName = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        seen.put("described", partitions(byName));
        Uuid id = created.topicId(topic).get();
        seen.put("described by id", admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds().get()
            .get(id).name());
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all().get();
        seen.put("grown", admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size());
        seen.put("shrink", error(() -> admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(2))).all().get()));
    }

    static List<String> partitions(TopicDescription description) {
        List<String> lines = new ArrayList<>();
        for (TopicPartitionInfo one : description.partitions()) {
            lines.add(one.partition() + " leader=" + one.leader().id() + " replicas=" + ids(one.replicas())
                + " isr=" + ids(one.isr()) + " elr=" + ids(one.elr()));
        }
        return lines;
    }

    static void configs(Admin admin, String topic, Map<String, Object> seen) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        List<AlterConfigOp> changes = List.of(
            new AlterConfigOp(new ConfigEntry("max.message.bytes", "2000000"), AlterConfigOp.OpType.SET),
            new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND),
            new AlterConfigOp(new ConfigEntry("retention.ms", null), AlterConfigOp.OpType.DELETE));
        admin.incrementalAlterConfigs(Map.of(resource, changes)).all().get();
        Config config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        for (String name : List.of("max.message.bytes", "cleanup.policy", "retention.ms")) {
            seen.put(name, config.get(name).value() + " " + config.get(name).source());
        }
        seen.put("bad config", error(() -> admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry("retention.ms", "soon"), AlterConfigOp.OpType.SET)))).all().get()));
        admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.SUBTRACT)))).all().get();
        seen.put("cleanup.policy after", admin.describeConfigs(List.of(resource)).all().get().get(resource)
            .get("cleanup.policy").value());
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "1");
        Config brokerConfig = admin.describeConfigs(List.of(broker),
            new DescribeConfigsOptions().includeDocumentation(true).includeSynonyms(true)).all().get().get(broker);
        seen.put("broker keys", brokerConfig.entries().size());
        seen.put("broker documentation", brokerConfig.get("log.retention.hours").documentation());
        Set<String> resources = new TreeSet<>();
        for (ConfigResource one : admin.listConfigResources().all().get()) resources.add(one.type() + " " + one.name());
        seen.put("config resources", resources.contains("TOPIC " + topic));
    }

    static void records(Admin admin, String topic, Map<String, Object> seen) throws Exception {
        TopicPartition where = new TopicPartition(topic, 0);
        try (Producer<byte[], byte[]> producer =
                new KafkaProducer<>(config(null), new ByteArraySerializer(), new ByteArraySerializer())) {
            for (long i = 0; i < 10; i++) {
                producer.send(new ProducerRecord<>(topic, 0, 1_000_000_000_000L + (i == 4 ? 99 : i), null, new byte[10]));
            }
        }
        Map<String, Object> offsets = new TreeMap<>();
        Map<String, OffsetSpec> specs = Map.of("earliest", OffsetSpec.earliest(), "latest", OffsetSpec.latest(),
            "max timestamp", OffsetSpec.maxTimestamp(), "at time", OffsetSpec.forTimestamp(1_000_000_000_003L),
            "earliest local", OffsetSpec.earliestLocal(), "latest tiered", OffsetSpec.latestTiered());
        for (Map.Entry<String, OffsetSpec> spec : specs.entrySet()) {
            offsets.put(spec.getKey(), admin.listOffsets(Map.of(where, spec.getValue())).partitionResult(where).get().offset());
        }
        seen.put("offsets", offsets);
        seen.put("producers", admin.describeProducers(List.of(where)).partitionResult(where).get().activeProducers().size());
        seen.put("deleted records", admin.deleteRecords(Map.of(where, RecordsToDelete.beforeOffset(4)))
            .lowWatermarks().get(where).get().lowWatermark());
        seen.put("earliest after", admin.listOffsets(Map.of(where, OffsetSpec.earliest())).partitionResult(where).get().offset());
        seen.put("delete too many", error(
            () -> admin.deleteRecords(Map.of(where, RecordsToDelete.beforeOffset(11))).all().get()));
    }

    static void cluster(Admin admin, String topic, Map<String, Object> seen) throws Exception {
        DescribeClusterResult cluster = admin.describeCluster();
        seen.put("cluster id", cluster.clusterId().get());
        seen.put("controller", cluster.controller().get().id());
        seen.put("nodes", ids(new ArrayList<>(cluster.nodes().get())));
        TopicPartitionReplica replica = new TopicPartitionReplica(topic, 0, 1);
        LogDirDescription directory = admin.describeLogDirs(List.of(1)).allDescriptions().get().get(1).values().iterator().next();
        seen.put("log dir", directory.error() == null && directory.totalBytes().getAsLong() > 0);
        seen.put("replica bytes", directory.replicaInfos().get(new TopicPartition(topic, 0)).size() > 0);
        seen.put("replica log dir", admin.describeReplicaLogDirs(List.of(replica)).all().get().get(replica)
            .getCurrentReplicaLogDir() != null);
        FeatureMetadata features = admin.describeFeatures().featureMetadata().get();
        seen.put("metadata.version", features.finalizedFeatures().get("metadata.version").maxVersionLevel());
        QuorumInfo quorum = admin.describeMetadataQuorum().quorumInfo().get();
        seen.put("quorum", quorum.leaderId() + " " + quorum.voters().size() + " " + (quorum.highWatermark() > 0));
        TopicPartition where = new TopicPartition(topic, 1);
        seen.put("election", error(
            () -> admin.electLeaders(ElectionType.PREFERRED, Set.of(where)).partitions().get().get(where)
                .map(reason -> { throw new KafkaException(reason); })));
    }

    // What this broker does not serve yet must be refused at once and by name, not by a timeout.
    static void notServed(Admin admin, Map<String, Object> seen) {
        seen.put("groups", error(() -> admin.listGroups().all().get()));
        seen.put("acls", error(() -> admin.describeAcls(org.apache.kafka.common.acl.AclBindingFilter.ANY).values().get()));
        seen.put("transactions", error(() -> admin.listTransactions().all().get()));
    }

    // -- small ---------------------------------------------------------------------------------------------------------

    static Map<String, Object> config(JsonNode order) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", bootstrap);
        if (order != null && order.has("config")) {
            order.get("config").fields().forEachRemaining(entry -> config.put(entry.getKey(), entry.getValue().asText()));
        }
        return config;
    }

    static TopicPartition where(JsonNode order) {
        return new TopicPartition(order.get("topic").asText(), order.get("partition").asInt());
    }

    static byte[] bytes(JsonNode text) {
        return text == null || text.isNull() ? null : text.asText().getBytes(StandardCharsets.ISO_8859_1);
    }

    static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.ISO_8859_1);
    }

    static List<Integer> ids(List<Node> nodes) {
        List<Integer> ids = new ArrayList<>();
        for (Node node : nodes) ids.add(node.id());
        return ids;
    }

    static String error(Callable<?> call) {
        try {
            call.call();
            return null;
        } catch (Exception error) {
            return nameOf(error);
        }
    }

    static String nameOf(Throwable error) {
        Throwable cause = error;
        while ((cause instanceof ExecutionException || cause.getClass() == KafkaException.class) && cause.getCause() != null) {
            cause = cause.getCause();
        }
        return cause.getClass().getSimpleName();
    }
}
