#pragma once
// What the user asked for, per command. options.cpp is the only reader of argv and of the environment.

#include "backend/cuda/cuda_backend.h"
#include "backend/sampling.h"
#include "backend/weights.h"
#include "text/conversation.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace nibble::app {

enum class BackendKind { kCpu, kCuda, kReference };
enum class LoadFormat { kAuto, kSafetensors, kDummy };
enum class KvCacheDtype { kAuto, kBf16, kF32 };
enum class ColorMode { kAuto, kAlways, kNever };

// Which model, where it runs, and how much room it gets.
struct ModelOptions {
  std::string model;  // a directory, or with --load-format dummy also a preset's name
  LoadFormat load_format = LoadFormat::kAuto;
  uint64_t dummy_seed = 1;
  BackendKind backend = BackendKind::kCpu;
  int threads = 0;  // 0: one per core
  KvCacheDtype kv_cache_dtype = KvCacheDtype::kAuto;
  backend::MoeKernel moe_kernel = backend::MoeKernel::kAuto;  // of the CUDA backend
  bool enforce_eager = false;                                 // likewise
  int64_t max_model_len = 0;  // 0: the command's default
  int max_num_batched_tokens = 256;
  bool attention_sinks = true;
  backend::DenseFormats dense;  // --mxfp4-layers, --mxfp8-layers
};

struct GenerateOptions {
  backend::SamplingParams sampling;
  int64_t max_tokens = 0;  // 0: until a stop or the end of the context
  std::vector<std::string> stop;
  bool ignore_eos = false;
};

struct OutputOptions {
  bool json = false;
  bool quiet = false;  // no progress, no summary
  ColorMode color = ColorMode::kAuto;
};

// Text from the command line, a file ("-": standard input), or neither.
struct TextInput {
  std::string text;
  std::filesystem::path file;
  bool given = false;
};

struct RunOptions {
  ModelOptions model;
  GenerateOptions generate;
  OutputOptions output;
  TextInput prompt;
  bool special = false;  // special tokens in the prompt are recognised
};

struct ChatOptions {
  ModelOptions model;
  GenerateOptions generate;
  OutputOptions output;
  TextInput prompt;  // one question instead of a conversation
  std::string instructions;
  std::filesystem::path tools;  // JSON: OpenAI's "tools" array
  text::ReasoningEffort effort = text::ReasoningEffort::kMedium;
  std::string date;  // YYYY-MM-DD
};

struct InspectOptions {
  ModelOptions model;
  OutputOptions output;
  bool tensors = false;
  std::vector<int64_t> contexts;
};

struct TokenizeOptions {
  OutputOptions output;
  std::filesystem::path tokenizer;  // a model's directory, tokenizer.json or rank file; empty: o200k_harmony
  TextInput input;
  bool special = false;
  bool decode = false;  // the input is ids
  bool count = false;
};

struct PerplexityOptions {
  ModelOptions model;
  OutputOptions output;
  TextInput input;
  int64_t context = 512;  // tokens per window
};

struct CompareOptions {
  ModelOptions model;  // its backend is not used
  OutputOptions output;
  BackendKind a = BackendKind::kReference;
  BackendKind b = BackendKind::kCpu;
  TextInput prompt;
  double tolerance = 1e-4;
};

struct SynthOptions {
  OutputOptions output;
  std::string preset;
  int64_t layers = 0;  // 0: the preset's
  uint64_t seed = 1;
  std::filesystem::path directory;
};

enum class QuantizeScale { kOcp, kCeil, kRound };
struct QuantizeOptions {
  OutputOptions output;
  std::filesystem::path input;  // a safetensors file, or a model's directory whose experts are not quantised
  std::filesystem::path destination;
  std::string format = "mxfp4";
  QuantizeScale scale = QuantizeScale::kOcp;
  std::string tensors;  // glob over names; files only
};

using Command = std::variant<RunOptions, ChatOptions, InspectOptions, TokenizeOptions, PerplexityOptions,
                             CompareOptions, SynthOptions, QuantizeOptions>;

// What main does next: a command, or text to print (help, version) and leave.
struct Exit {
  int code = 0;
  std::string out;  // for standard output
};

// Throws Error(kInvalidRequest) for a command line that is none.
[[nodiscard]] std::variant<Command, Exit> parse_command_line(int argc, const char* const* argv);

// Exit codes of the program; `nibble --help` lists them.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,      // what should not happen
  kExitUsage = 2,        // the command line or the request
  kExitUnsupported = 3,  // sensible, but not served here
  kExitCorrupt = 4,      // a file's content
  kExitIo = 5,           // the operating system
  kExitNoMemory = 6,
  kExitDevice = 7,
  kExitDiffers = 8,  // compare found a difference
  kExitInterrupted = 130,
};

}  // namespace nibble::app
