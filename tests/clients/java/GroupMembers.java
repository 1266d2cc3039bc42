import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Members of groups behind a pipe, each a consumer with a thread of its own. A line in starts a member or stops it:
 * {"member", "bootstrap", "group", "topic", "settings"} and {"member"}. A line out is what a member has to say:
 * its assignment, a record, or that it has ended. A closed standard input ends all of them in good order.
 */
public class GroupMembers {
    private static final Map<String, String> ASSIGNORS = Map.of(
        "range", "RangeAssignor",
        "roundrobin", "RoundRobinAssignor",
        "sticky", "StickyAssignor",
        "cooperative-sticky", "CooperativeStickyAssignor");

    public static void main(String[] args) throws Exception {
        ObjectMapper json = new ObjectMapper();
        Map<Integer, Member> members = new HashMap<>();
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = orders.readLine()) != null; ) {
            JsonNode order = json.readTree(line);
            int name = order.get("member").asInt();
            if (order.has("group")) {
                Member member = new Member(name, order);
                members.put(name, member);
                member.start();
            } else {
                members.remove(name).isOver = true;
            }
        }
        members.values().forEach(member -> member.isOver = true);
    }

    private static class Member extends Thread {
        private final int name;
        private final String topic;
        private final Properties settings = new Properties();
        volatile boolean isOver;

        Member(int name, JsonNode order) {
            this.name = name;
            topic = order.get("topic").asText();
            settings.put("bootstrap.servers", order.get("bootstrap").asText());
            settings.put("group.id", order.get("group").asText());
            settings.put("enable.auto.commit", "false");
            settings.put("auto.offset.reset", "earliest");
            settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
            settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
            JsonNode given = order.get("settings");
            if (!given.has("group.protocol") || given.get("group.protocol").asText().equals("classic")) {
                settings.put("session.timeout.ms", "6000");
                settings.put("heartbeat.interval.ms", "200");
            }
            given.fields().forEachRemaining(
                each -> settings.put(each.getKey(), setting(each.getKey(), each.getValue().asText())));
        }

        @Override
        public void run() {
            try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
                consumer.subscribe(List.of(topic));
                List<Integer> last = null;
                while (!isOver) {
                    ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(50));
                    List<Integer> assigned = partitions(consumer);
                    if (!assigned.equals(last)) {
                        last = assigned;
                        say("\"assigned\": " + assigned);
                    }
                    for (ConsumerRecord<byte[], byte[]> record : records) {
                        say("\"seen\": true, \"partition\": " + record.partition() + ", \"offset\": " + record.offset());
                    }
                    if (!records.isEmpty()) {
                        commit(consumer);
                    }
                }
            } finally {
                say("\"ended\": true");
            }
        }

        private void say(String what) {
            System.out.println("{\"member\": " + name + ", " + what + "}");
        }
    }

    private static String setting(String name, String value) {
        if (!name.equals("partition.assignment.strategy")) {
            return value;
        }
        return Stream.of(value.split(","))
            .map(each -> "org.apache.kafka.clients.consumer." + ASSIGNORS.get(each))
            .collect(Collectors.joining(","));
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
}
