import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/** The JDK's client, which offers HTTP/2 with what it sends first: java Conversation.java URL */
public class Conversation {
    private static final String TOOLS = """
        [{"type": "function", "function": {"name": "weather", "parameters":
            {"type": "object", "properties": {"city": {"type": "string"}}}}}]""";
    private static final String CALL = """
        {"role": "user", "content": "[[call weather {\\"city\\": \\"Oslo\\"}]]"}""";
    private static final String RECALL = """
        {"role": "user", "content": "[[recall]]"}""";
    private static final Pattern MESSAGE = Pattern.compile("\"message\":(\\{.*\\}),\"logprobs\"");
    private static final Pattern ID = Pattern.compile("\"id\":\"(call_[^\"]*)\"");

    private final HttpClient client = HttpClient.newHttpClient();
    private final URI uri;

    private Conversation(String url) {
        uri = URI.create(url + "/v1/chat/completions");
    }

    public static void main(String[] arguments) throws Exception {
        var conversation = new Conversation(arguments[0]);
        String called = conversation.ask(CALL);
        String id = find(ID, called);
        String result = """
            {"role": "tool", "tool_call_id": "%s", "content": "rain"}""".formatted(id);
        String said = conversation.ask(CALL, called, result);
        check(said.contains("\"The tools said: rain.\""), said);
        String again = conversation.ask(CALL, called, result, said, RECALL);
        check(again.contains("user assistant tool assistant user assistant: rain"), again);
        String streamed = conversation.stream(CALL, called, result);
        check(streamed.contains("data: [DONE]"), streamed);
    }

    private String ask(String... messages) throws Exception {
        var response = client.send(request(messages, false), BodyHandlers.ofString());
        check(response.statusCode() == 200, response.body());
        return find(MESSAGE, response.body());
    }

    private String stream(String... messages) throws Exception {
        var response = client.send(request(messages, true), BodyHandlers.ofLines());
        check(response.statusCode() == 200, "the stream was refused");
        return response.body().collect(Collectors.joining("\n"));
    }

    private HttpRequest request(String[] messages, boolean isStream) {
        String body = """
            {"model": "scripted", "messages": [%s], "tools": %s, "stream": %s}"""
            .formatted(String.join(", ", messages), TOOLS, isStream);
        return HttpRequest.newBuilder(uri)
            .header("Content-Type", "application/json")
            .POST(BodyPublishers.ofString(body))
            .build();
    }

    private static String find(Pattern pattern, String text) {
        Matcher matcher = pattern.matcher(text);
        check(matcher.find(), pattern + ": " + text);
        return matcher.group(1);
    }

    private static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }
}
