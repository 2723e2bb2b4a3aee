// Answers a prompt with a folder of `snapexport genai`, by the package Microsoft.ML.OnnxRuntimeGenAI.
//
//     dotnet run -- FOLDER < prompt.txt
//
// No test compiles this file: it follows the package's documentation.

using System;
using Microsoft.ML.OnnxRuntimeGenAI;

using var model = new Model(args[0]);
using var tokenizer = new Tokenizer(model);
using var stream = tokenizer.CreateStream();
using var parameters = new GeneratorParams(model);
using var generator = new Generator(model, parameters);
using var tokens = tokenizer.Encode(Console.In.ReadToEnd());

generator.AppendTokenSequences(tokens);
while (true)
{
    generator.GenerateNextToken();
    if (generator.IsDone()) break;
    Console.Write(stream.Decode(generator.GetNextTokens()[0]));
}
Console.WriteLine();
