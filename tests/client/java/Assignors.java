import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

/**
 * Assigns with Kafka's own classes. One case per line on stdin, words in tab-separated fields:
 *
 * assignor TAB topic=rackA+rackB,rackC,... TAB member=instance;rack;generation;topic,topic;topic-0,topic-1 TAB ...
 *
 * and one line per case on stdout, among what Kafka logs: assigned TAB member=topic-0,topic-1 TAB ...
 */
public class Assignors {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.append("assigned\t").append(assign(line.split("\t", -1))).append('\n');
        }
        System.out.print(out);
    }

    static String assign(String[] fields) {
        List<PartitionInfo> partitions = new ArrayList<>();
        Map<String, Subscription> subscriptions = new HashMap<>();
        for (int i = 1; i < fields.length; i++) {
            String[] pair = fields[i].split("=", -1);
            if (pair[1].contains(";")) {
                subscriptions.put(pair[0], subscription(fields[0], pair[1].split(";", -1)));
            } else {
                String[] racks = pair[1].split(",", -1);
                for (int partition = 0; partition < racks.length; partition++) {
                    partitions.add(partition(pair[0], partition, racks[partition]));
                }
            }
        }
        List<Node> leaders = partitions.stream().map(PartitionInfo::leader).distinct().toList();
        Cluster cluster = new Cluster("c", leaders, partitions, Set.of(), Set.of());
        Map<String, Assignment> found =
            assignor(fields[0]).assign(cluster, new GroupSubscription(subscriptions)).groupAssignment();
        List<String> shown = new ArrayList<>();
        new TreeMap<>(found).forEach((member, assignment) -> {
            List<String> given = new ArrayList<>();
            assignment.partitions().forEach(tp -> given.add(tp.toString()));
            shown.add(member + "=" + String.join(",", given));
        });
        return String.join("\t", shown);
    }

    static ConsumerPartitionAssignor assignor(String name) {
        return switch (name) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            default -> new CooperativeStickyAssignor();
        };
    }

    @SuppressWarnings("removal")
    static Subscription subscription(String assignor, String[] words) {
        int generation = Integer.parseInt(words[2]);
        List<TopicPartition> owned = new ArrayList<>();
        for (String word : list(words[4])) {
            int dash = word.lastIndexOf('-');
            owned.add(new TopicPartition(word.substring(0, dash), Integer.parseInt(word.substring(dash + 1))));
        }
        Optional<String> rack = words[1].isEmpty() ? Optional.empty() : Optional.of(words[1]);
        ByteBuffer userData = null;
        if (assignor.equals("sticky") && generation >= 0) {
            StickyAssignor before = new StickyAssignor();
            before.onAssignment(new Assignment(owned), new ConsumerGroupMetadata("g", generation, "m", Optional.empty()));
            userData = before.subscriptionUserData(Set.of());
        }
        Subscription subscription = new Subscription(list(words[3]), userData, owned, generation, rack);
        subscription.setGroupInstanceId(words[0].isEmpty() ? Optional.empty() : Optional.of(words[0]));
        return subscription;
    }

    static List<String> list(String words) {
        return words.isEmpty() ? List.of() : Arrays.asList(words.split(","));
    }

    static PartitionInfo partition(String topic, int partition, String racks) {
        Node[] replicas = Arrays.stream(racks.split("\\+", -1)).map(Assignors::node).toArray(Node[]::new);
        return new PartitionInfo(topic, partition, replicas[0], replicas, replicas);
    }

    static Node node(String rack) {
        return new Node(rack.hashCode(), "h", 1, rack.isEmpty() ? null : rack);
    }
}
