// Kafka's command-line tools in one JVM. Each line on standard input is a JSON object {"class", "args", "stdin"}, each
// line on standard output the JSON list [exit code, what it printed, what it complained].

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.FilterOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

public class Tools {
    public static void main(String[] args) throws Exception {
        ObjectMapper json = new ObjectMapper();
        PrintStream answers = System.out;
        System.setErr(new PrintStream(OutputStream.nullOutputStream()));  // what tools left behind is heard by nobody
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = orders.readLine()) != null; ) {
            answers.println(json.writeValueAsString(run(json.readTree(line))));
            answers.flush();
        }
    }

    /** Thrown where a tool would end the JVM. */
    static class Exited extends Error {}

    /** Run a tool as its script would. */
    static List<Object> run(JsonNode order) throws Exception {
        List<String> args = new ArrayList<>();
        order.get("args").forEach(arg -> args.add(arg.asText()));
        PrintStream out = System.out, err = System.err;
        InputStream in = System.in;
        ByteArrayOutputStream toOut = new ByteArrayOutputStream(), toErr = new ByteArrayOutputStream();
        Integer[] code = {null};
        List<Runnable> hooks = new ArrayList<>();
        Exit.Procedure procedure = (status, message) -> {
            // The first exit is the real one: what a tool makes of our exception afterwards never happened.
            if (code[0] == null) {
                code[0] = status;
                hooks.forEach(Runnable::run);
                System.setOut(new PrintStream(OutputStream.nullOutputStream()));
                System.setErr(new PrintStream(OutputStream.nullOutputStream()));
            }
            throw new Exited();
        };
        Exit.setExitProcedure(procedure);
        Exit.setHaltProcedure(procedure);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        ThreadGroup threads = new ThreadGroup(order.get("class").asText());
        System.setOut(printing(toOut, threads));
        System.setErr(printing(toErr, threads));
        System.setIn(new ByteArrayInputStream(order.get("stdin").asText().getBytes(StandardCharsets.UTF_8)));
        Thread main = new Thread(threads, () -> {
            try {
                Class.forName(order.get("class").asText()).getMethod("main", String[].class)
                    .invoke(null, (Object) args.toArray(new String[0]));
            } catch (ReflectiveOperationException error) {
                if (!(error.getCause() instanceof Exited)) {
                    (error.getCause() == null ? error : error.getCause()).printStackTrace();
                    code[0] = 1;
                }
            }
        });
        try {
            main.start();
            main.join();
        } finally {
            if (code[0] == null) hooks.forEach(Runnable::run);
            System.setOut(out);
            System.setErr(err);
            System.setIn(in);
        }
        return List.of(code[0] == null ? 0 : code[0], toOut.toString(StandardCharsets.UTF_8),
            toErr.toString(StandardCharsets.UTF_8));
    }

    /** Takes what these threads print. Those that an earlier tool left behind, which would be gone, are not heard. */
    static PrintStream printing(OutputStream to, ThreadGroup threads) {
        return new PrintStream(new FilterOutputStream(to) {
            @Override
            public void write(int one) throws IOException {
                if (threads.parentOf(Thread.currentThread().getThreadGroup())) out.write(one);
            }

            @Override
            public void write(byte[] some, int start, int count) throws IOException {
                if (threads.parentOf(Thread.currentThread().getThreadGroup())) out.write(some, start, count);
            }
        }, true);
    }
}
