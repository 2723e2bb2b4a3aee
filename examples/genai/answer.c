/* Answers a prompt with a folder of `snapexport genai`, by onnxruntime-genai's C API alone.

       cc answer.c -o answer DIR/libonnxruntime-genai.so && ./answer FOLDER < prompt.txt

   genai's releases have a header, ort_genai_c.h. Its Python package has none but the library, which
   needs libonnxruntime.so: set ORT_LIB_PATH, or LD_LIBRARY_PATH to where that is. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct OgaResult OgaResult;
typedef struct OgaModel OgaModel;
typedef struct OgaTokenizer OgaTokenizer;
typedef struct OgaTokenizerStream OgaTokenizerStream;
typedef struct OgaSequences OgaSequences;
typedef struct OgaGenerator OgaGenerator;
typedef struct OgaGeneratorParams OgaGeneratorParams;

const char* OgaResultGetError(const OgaResult*);
OgaResult* OgaCreateModel(const char* folder, OgaModel**);
OgaResult* OgaCreateTokenizer(const OgaModel*, OgaTokenizer**);
OgaResult* OgaUpdateTokenizerOptions(OgaTokenizer*, const char* const* keys,
                                     const char* const* values, size_t count);
OgaResult* OgaCreateTokenizerStream(const OgaTokenizer*, OgaTokenizerStream**);
OgaResult* OgaTokenizerStreamDecode(OgaTokenizerStream*, int32_t token, const char** text);
OgaResult* OgaCreateSequences(OgaSequences**);
OgaResult* OgaTokenizerEncode(const OgaTokenizer*, const char* text, OgaSequences*);
OgaResult* OgaCreateGeneratorParams(const OgaModel*, OgaGeneratorParams**);
OgaResult* OgaCreateGenerator(const OgaModel*, const OgaGeneratorParams*, OgaGenerator**);
OgaResult* OgaGenerator_AppendTokenSequences(OgaGenerator*, const OgaSequences*);
OgaResult* OgaGenerator_GenerateNextToken(OgaGenerator*);
OgaResult* OgaGenerator_GetNextTokens(const OgaGenerator*, const int32_t** tokens, size_t* count);
bool OgaGenerator_IsDone(OgaGenerator*);
void OgaDestroyTokenizerStream(OgaTokenizerStream*);
void OgaDestroyGenerator(OgaGenerator*);
void OgaDestroyGeneratorParams(OgaGeneratorParams*);
void OgaDestroySequences(OgaSequences*);
void OgaDestroyTokenizer(OgaTokenizer*);
void OgaDestroyModel(OgaModel*);
void OgaShutdown(void);

static void check(OgaResult* result) {
  if (result) {
    fprintf(stderr, "error: %s\n", OgaResultGetError(result));
    exit(1);
  }
}

int main(int count, char** words) {
  static char prompt[1 << 24];
  if (count != 2) {
    fprintf(stderr, "usage: answer FOLDER < prompt.txt\n");
    return 2;
  }
  prompt[fread(prompt, 1, sizeof prompt - 1, stdin)] = 0;

  OgaModel* model;
  OgaTokenizer* tokenizer;
  OgaTokenizerStream* stream;
  OgaSequences* tokens;
  OgaGeneratorParams* params;
  OgaGenerator* generator;
  const char *keys[] = {"add_special_tokens"}, *values[] = {"true"};
  check(OgaCreateModel(words[1], &model));
  check(OgaCreateTokenizer(model, &tokenizer));
  check(OgaUpdateTokenizerOptions(tokenizer, keys, values, 1));
  check(OgaCreateTokenizerStream(tokenizer, &stream));
  check(OgaCreateSequences(&tokens));
  check(OgaTokenizerEncode(tokenizer, prompt, tokens));
  check(OgaCreateGeneratorParams(model, &params));
  check(OgaCreateGenerator(model, params, &generator));
  check(OgaGenerator_AppendTokenSequences(generator, tokens));
  for (;;) {
    const int32_t* next;
    const char* text;
    size_t rows;
    check(OgaGenerator_GenerateNextToken(generator));
    if (OgaGenerator_IsDone(generator)) break;
    check(OgaGenerator_GetNextTokens(generator, &next, &rows));
    check(OgaTokenizerStreamDecode(stream, next[0], &text));
    fputs(text, stdout);
    fflush(stdout);
  }
  putchar('\n');
  OgaDestroyGenerator(generator);
  OgaDestroyGeneratorParams(params);
  OgaDestroySequences(tokens);
  OgaDestroyTokenizerStream(stream);
  OgaDestroyTokenizer(tokenizer);
  OgaDestroyModel(model);
  OgaShutdown();
  return 0;
}
