// openai's client for JavaScript with zod, and Vercel's AI SDK by its three ways to the server.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { Output, generateText, streamText, tool } from "ai";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
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
};

const baseURL = process.env.OPENAI_BASE_URL;
const compatible = { name: "served", baseURL, supportsStructuredOutputs: true };
const providers = {
  chats: createOpenAICompatible(compatible),
  responses: createOpenAI({ baseURL, apiKey: "none" }),
  messages: createAnthropic({ baseURL, apiKey: "none" }),
};
for (const [name, provider] of Object.entries(providers)) {
  const options = { model: provider(model), prompt: question };
  checks[`AI SDK by ${name}: a stream`] = async () => {
    const { textStream } = streamText({ ...options, maxOutputTokens: 8 });
    const parts = [];
    for await (const part of textStream) parts.push(part);
    assert(parts.length > 1);
  };
  checks[`AI SDK by ${name}: an object`] = async () => {
    const done = await generateText({ ...options, output: Output.object({ schema: City }) });
    City.parse(done.output);
  };
  checks[`AI SDK by ${name}: a required tool`] = async () => {
    const tools = { look_up: tool({ description: "Looks a city up", inputSchema: City }) };
    const done = await generateText({ ...options, tools, toolChoice: "required" });
    City.parse(done.toolCalls[0].input);
    assert.equal(done.finishReason, "tool-calls");
  };
}

for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`passed: ${name}`);
  } catch (error) {
    console.error(`failed: ${name}:`, error.message, error.responseBody ?? "");
    process.exitCode = 1;
  }
}
