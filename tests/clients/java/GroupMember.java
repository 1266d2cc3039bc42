import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.InputStream;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** A member of a group behind a pipe: assignments and records as lines of JSON, ended by a closed standard input. */
public class GroupMember {
    private static final Map<String, String> ASSIGNORS = Map.of(
        "range", "RangeAssignor",
        "roundrobin", "RoundRobinAssignor",
        "sticky", "StickyAssignor",
        "cooperative-sticky", "CooperativeStickyAssignor");

    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[1]);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        JsonNode given = new ObjectMapper().readTree(args[3]);
        boolean classic = !given.has("group.protocol") || given.get("group.protocol").asText().equals("classic");
        if (classic) {
            settings.put("session.timeout.ms", "6000");
            settings.put("heartbeat.interval.ms", "200");
        }
        given.fields().forEachRemaining(each -> settings.put(each.getKey(), setting(each.getKey(), each.getValue().asText())));
        AtomicBoolean over = new AtomicBoolean();
        Thread waiter = new Thread(() -> waitForEnd(System.in, over));
        waiter.setDaemon(true);
        waiter.start();
        int seen = 0;
        List<Integer> last = null;
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(args[2]));
            while (!over.get()) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(50));
                List<Integer> assigned = partitions(consumer);
                if (!assigned.equals(last)) {
                    last = assigned;
                    System.out.println("{\"assigned\": " + assigned + "}");
                }
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    seen++;
                    System.out.printf("{\"seen\": %d, \"partition\": %d, \"offset\": %d}%n", seen, record.partition(), record.offset());
                }
                System.out.flush();
                if (!records.isEmpty()) {
                    commit(consumer);
                }
            }
        }
    }

    private static String setting(String name, String value) {
        if (!name.equals("partition.assignment.strategy")) {
            return value;
        }
        return Stream.of(value.split(",")).map(each -> "org.apache.kafka.clients.consumer." + ASSIGNORS.get(each)).collect(Collectors.joining(","));
    }

    private static List<Integer> partitions(KafkaConsumer<byte[], byte[]> consumer) {
        TreeSet<Integer> numbers = new TreeSet<>();
        consumer.assignment().forEach(each -> numbers.add(each.partition()));
        return List.copyOf(numbers);
    }

    private static void commit(KafkaConsumer<byte[], byte[]> consumer) {
        try {
            consumer.commitSync();
        } catch (CommitFailedException | RebalanceInProgressException | RetriableException moved) {
            // Another member has it by now and reads it again.
            System.err.println(moved.getMessage());
        }
    }

    private static void waitForEnd(InputStream input, AtomicBoolean over) {
        try {
            while (input.read() >= 0) {
                // nothing is said here
            }
        } catch (java.io.IOException broken) {
            System.err.println(broken.getMessage());
        }
        over.set(true);
    }
}
