import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Transactions of the Java clients behind a pipe: a line of JSON in with "do", a line of JSON out. */
public class Transactions {
    static final Duration PATIENCE = Duration.ofSeconds(40);
    static final Map<String, Producer<String, String>> producers = new HashMap<>();
    static String bootstrap;
    static Consumer<String, String> member;
    static final Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        ObjectMapper json = new ObjectMapper();
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = orders.readLine()) != null; ) {
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                answer.put("ok", obey(json.readTree(line)));
            } catch (Exception error) {
                answer.put("error", error.toString() + " " + error.getCause());
            }
            System.out.println(json.writeValueAsString(answer));
            System.out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    static Object obey(JsonNode order) throws Exception {
        Producer<String, String> producer = order.has("name") ? producers.get(order.get("name").asText()) : null;
        switch (order.get("do").asText()) {
            case "open":
                producer = new KafkaProducer<>(Map.of("bootstrap.servers", bootstrap, "linger.ms", 0,
                    "transactional.id", order.get("transactionalId").asText()), new StringSerializer(), new StringSerializer());
                producers.put(order.get("name").asText(), producer);
                producer.initTransactions();
                return null;
            case "begin":
                producer.beginTransaction();
                return null;
            case "send":
                return producer.send(new ProducerRecord<>(order.get("topic").asText(), order.get("partition").asInt(),
                    null, order.get("value").asText())).get().offset();
            case "commit":
                producer.commitTransaction();
                return null;
            case "abort":
                producer.abortTransaction();
                return null;
            case "consume":
                return consume(order.get("group").asText(), order.get("topic").asText(), order.get("count").asInt());
            case "sendOffsets":
                producer.sendOffsetsToTransaction(new HashMap<>(positions), member.groupMetadata());
                return null;
            case "leave":
                member.close();
                member = null;
                positions.clear();
                return null;
            case "committed":
                return committed(new TopicPartition(order.get("topic").asText(), order.get("partition").asInt()));
            default:
                throw new IllegalArgumentException("cannot do " + order.get("do"));
        }
    }

    static Consumer<String, String> consumer(Map<String, Object> more) {
        Map<String, Object> config = new HashMap<>(more);
        config.put("bootstrap.servers", bootstrap);
        config.put("isolation.level", "read_committed");
        config.put("enable.auto.commit", "false");
        config.put("auto.offset.reset", "earliest");
        return new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
    }

    static List<String> consume(String group, String topic, int count) {
        if (member == null) {
            member = consumer(Map.of("group.id", group, "max.poll.records", 1));
            member.subscribe(List.of(topic));
        }
        List<String> found = new ArrayList<>();
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        while (found.size() < count && System.nanoTime() < deadline) {
            for (ConsumerRecord<String, String> record : member.poll(Duration.ofMillis(100))) {
                found.add(record.value());
                positions.put(new TopicPartition(topic, record.partition()), new OffsetAndMetadata(record.offset() + 1));
            }
        }
        return found;
    }

    static List<String> committed(TopicPartition where) {
        List<String> found = new ArrayList<>();
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        try (Consumer<String, String> reader = consumer(Map.of("fetch.max.wait.ms", 50))) {
            reader.assign(List.of(where));
            while ((found.isEmpty() || !found.get(found.size() - 1).equals("end")) && System.nanoTime() < deadline) {
                for (ConsumerRecord<String, String> record : reader.poll(Duration.ofMillis(100))) {
                    found.add(record.value());
                }
            }
        }
        return found;
    }
}
