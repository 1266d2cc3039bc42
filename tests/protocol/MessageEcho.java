import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.protocol.Readable;

/** Reads "class version hex" lines, decodes each with Kafka's own class and answers with the bytes that Kafka writes. */
public class MessageEcho {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder answers = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split(" ", -1);
            short version = Short.parseShort(parts[1]);
            ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(parts[2]));
            try {
                Message message = (Message) Class.forName(parts[0])
                    .getConstructor(Readable.class, short.class)
                    .newInstance(new ByteBufferAccessor(bytes), version);
                ByteBuffer written = MessageUtil.toByteBufferAccessor(message, version).buffer();
                byte[] array = new byte[written.remaining()];
                written.get(array);
                answers.append(HexFormat.of().formatHex(array)).append(' ').append(bytes.remaining()).append('\n');
            } catch (ReflectiveOperationException error) {
                Throwable cause = error.getCause() == null ? error : error.getCause();
                answers.append("error ").append(cause.toString().replace('\n', ' ')).append('\n');
            }
        }
        System.out.print(answers);
    }
}
