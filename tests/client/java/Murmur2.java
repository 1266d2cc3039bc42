import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.utils.Utils;

/** Reads keys in hex, one per line, and prints Java's hash and partition of 1, 7 and 1000 for each. */
public class Murmur2 {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            byte[] key = HexFormat.of().parseHex(line);
            out.append(Utils.murmur2(key));
            for (int count : new int[] {1, 7, 1000}) {
                out.append(' ').append(BuiltInPartitioner.partitionForKey(key, count));
            }
            out.append('\n');
        }
        System.out.print(out);
    }
}
