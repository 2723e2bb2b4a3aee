// openai's client for JavaScript with zod, and Vercel's AI SDK. Fails by the first assertion.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { Output, generateText, streamText, tool } from "ai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";

const model = process.env.MODEL;
const question = "Which city is the capital of France?";
const City = z.object({
  name: z.enum(["Paris", "Rome", "Berlin"]),
  districts: z.number().int().min(0).max(99),
});

const checks = {
  async "openai: a stream and its usage"() {
    const stream = await new OpenAI().chat.completions.create({
      model,
      messages: [{ role: "user", content: question }],
      max_tokens: 8,
      stream: true,
      stream_options: { include_usage: true },
    });
    const chunks = [];
    for await (const chunk of stream) chunks.push(chunk);
    assert(chunks.filter((chunk) => chunk.choices[0]?.delta.content).length > 1);
    assert.equal(chunks.at(-1).usage.completion_tokens, 8);
  },
  async "openai: an object by zod"() {
    const done = await new OpenAI().chat.completions.parse({
      model,
      messages: [{ role: "user", content: question }],
      response_format: zodResponseFormat(City, "city"),
    });
    City.parse(done.choices[0].message.parsed);
  },
  async "openai: a required tool by zod"() {
    const done = await new OpenAI().chat.completions.parse({
      model,
      messages: [{ role: "user", content: question }],
      tools: [zodFunction({ name: "look_up", parameters: City })],
      tool_choice: "required",
    });
    City.parse(done.choices[0].message.tool_calls[0].function.parsed_arguments);
    assert.equal(done.choices[0].finish_reason, "tool_calls");
  },
  async "AI SDK: a stream"() {
    const { textStream } = streamText({ model: served(), prompt: question, maxOutputTokens: 8 });
    const parts = [];
    for await (const part of textStream) parts.push(part);
    assert(parts.length > 1);
  },
  async "AI SDK: an object"() {
    const done = await generateText({
      model: served(),
      prompt: question,
      output: Output.object({ schema: City }),
    });
    City.parse(done.output);
  },
  async "AI SDK: a required tool"() {
    const done = await generateText({
      model: served(),
      prompt: question,
      tools: { look_up: tool({ description: "Looks a city up", inputSchema: City }) },
      toolChoice: "required",
    });
    City.parse(done.toolCalls[0].input);
    assert.equal(done.finishReason, "tool-calls");
  },
};

function served() {
  const baseURL = process.env.OPENAI_BASE_URL;
  const options = { name: "served", baseURL, supportsStructuredOutputs: true };
  return createOpenAICompatible(options)(model);
}

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log(`passed: ${name}`);
}
