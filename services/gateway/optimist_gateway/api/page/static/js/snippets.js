// The request as others would send it.

/** Returns a shell command. */
export function curlSnippet(body, baseUrl, withKey) {
  const lines = [
    `curl -sN ${shellQuoted(`${baseUrl}/chat/completions`)}`,
    "-H 'Content-Type: application/json'",
    ...(withKey ? ['-H "Authorization: Bearer $OPTIMIST_API_KEY"'] : []),
    `-d ${shellQuoted(JSON.stringify(body, null, 2))}`,
  ];
  return `${lines.join(" \\\n  ")}\n`;
}

/** Returns a program for OpenAI's Python client. */
export function pythonSnippet(body, baseUrl, withKey) {
  const { messages, prediction, num_speculative_tokens: maxDrafts, ...rest } = body;
  const key = withKey ? 'os.environ["OPTIMIST_API_KEY"]' : '"none"';
  const options = Object.entries(rest).map(([name, value]) => `    ${name}=${JSON.stringify(value)},`);
  return [
    ...(withKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(baseUrl)}, api_key=${key})`,
    "messages = [",
    ...messages.map(({ role, content }) => `    {"role": "${role}", "content": ${pythonText(content)}},`),
    "]",
    ...(prediction ? [`prediction = ${pythonText(prediction.content)}`] : []),
    "answer = client.chat.completions.create(",
    "    messages=messages,",
    ...(prediction ? ['    prediction={"type": "content", "content": prediction},'] : []),
    ...options,
    ...(maxDrafts === undefined ? [] : [`    extra_body={"num_speculative_tokens": ${maxDrafts}},`]),
    ")",
    "print(answer.choices[0].message.content)",
    "print(answer.usage)",
    "",
  ].join("\n");
}

function shellQuoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** A literal of several lines; JSON's escapes are Python's. */
function pythonText(text) {
  const lines = text.split(/(?<=\n)/);
  if (lines.length < 2) return JSON.stringify(text);
  return `(\n${lines.map((line) => `    ${JSON.stringify(line)}`).join("\n")}\n)`;
}
