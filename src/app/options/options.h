#pragma once
// What the user asked for, per command: the defaults are those of the members, the rest is in the option table
// (option.h). options.cpp is the only reader of argv and of the environment.

#include "backend/cuda/card/device_facts.h"
#include "backend/run_config.h"
#include "backend/sampling.h"
#include "base/mx.h"
#include "checkpoint/gguf.h"
#include "engine/proposer.h"
#include "hub/http.h"
#include "lab/client/workload.h"
#include "model/eagle3/head.h"
#include "text/conversation.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace nibble::app {

using backend::BackendKind;
enum class LoadFormat { kAuto, kSafetensors, kGguf, kDummy };
enum class ColorMode { kAuto, kAlways, kNever };

// What to do about a model of the Hub that is not on this machine. kOffer: ask, if a person is at the terminal.
enum class WhenAbsent { kRefuse, kOffer, kPull };

// A value of --max-model-len, for serve only: the model's context, or as much of it as fits.
inline constexpr int64_t kContextThatFits = -1;

// One setting of a command and where it came from.
struct Setting {
  std::string flag, value, origin;
  std::string resolved{};  // what an open value became at the start; empty: the value itself, or not known yet
};

// Environment variables by their names. In a result: those that may change what runs or how fast.
using Variables = std::map<std::string, std::string>;

// How a command's options were filled (settings.h).
struct Settings {
  bool print = false;  // --print-config
  std::string file;    // --config
  std::vector<Setting> all;
  std::vector<Setting> implied;    // set by another program's flags; what the user gave here counts before them
  std::vector<std::string> notes;  // what was asked for in another program's words, one line each
  std::map<std::string, std::string> foreign_words;  // by flag, if its value was such a word
};

// One of several processes that share every step, a rank each.
struct GroupOptions {
  int count = 1;        // --nnodes
  int rank = 0;         // --node-rank
  std::string address;  // where rank 0 waits
  int port = 29501;
  int timeout = 600;  // seconds until all have come
  std::string card;   // what CUDA_VISIBLE_DEVICES is to be, by the rank among those of this machine; empty: as it is
};

// Which model, where it runs, and how much room it gets.
struct ModelOptions {
  Settings settings{};
  std::string model{};  // as it was asked for; later (named_model.h) its directory or file, or a preset's name
  std::string name{};   // for people: the last part of what was asked for
  hub::Settings hub{};
  std::string revision{};  // of the model on the Hub; empty: main, or what there is
  WhenAbsent when_absent = WhenAbsent::kRefuse;
  LoadFormat load_format = LoadFormat::kAuto;
  uint64_t dummy_seed = 1;
  std::optional<backend::WeightFormat> expert_format{};  // of experts not in MXFP4 (model/manifest.h, BindOptions)
  backend::RunConfig run{};                              // as it was asked for; later (backend_choice.h) resolved
  std::string backend_why{};                             // one line for the user, if the backend was left open
  std::string fast_why{};                                // one line for the user: what --fast chose
  std::string offload_why{};                             // one line for the user, if experts were left to the host
  std::string left_out{};  // one line for the user: settings of cards, where none is used; formats without room
  GroupOptions group{};    // for run and serve
  backend::Range cards{};  // that may be used; empty: the first ones, one per rank
  engine::SpeculationLimits speculation{};    // of commands that answer; otherwise off
  std::filesystem::path speculative_model{};  // for eagle3: the head's directory; for draft: as `model`
  model::eagle3::TapReading tap_reading = model::eagle3::TapReading::kAuto;
};

struct GenerateOptions {
  backend::SamplingParams sampling;
  int64_t max_tokens = 0;  // 0: until a stop or the end of the context
  std::vector<std::string> stop;
  bool ignore_eos = false;
};

struct OutputOptions {
  bool json = false;
  bool quiet = false;    // no progress, no summary
  bool verbose = false;  // how it runs is told
  ColorMode color = ColorMode::kAuto;
  bool dumb_terminal = false;  // it knows no escapes: no colours unless asked for, no progress
};

// Text from the command line, a file ("-": standard input), or neither.
struct TextInput {
  std::string text;
  std::filesystem::path file;
  bool given = false;
};

struct RunOptions {
  ModelOptions model = {.when_absent = WhenAbsent::kOffer};
  GenerateOptions generate;
  OutputOptions output;
  TextInput prompt;
  bool special = false;  // special tokens in the prompt are recognised
};

struct ChatOptions {
  ModelOptions model = {.when_absent = WhenAbsent::kOffer};
  GenerateOptions generate;
  OutputOptions output;
  TextInput prompt;  // one question instead of a conversation
  std::string instructions;
  std::filesystem::path tools;  // JSON: OpenAI's "tools" array
  text::ReasoningEffort effort = text::ReasoningEffort::kMedium;
  bool show_reasoning = false;    // while it arrives, on a terminal; elsewhere it is always shown
  std::filesystem::path history;  // of what was typed; empty: none is kept
  bool keeps_history = true;
  std::string date;  // YYYY-MM-DD
};

struct InspectOptions {
  ModelOptions model;
  OutputOptions output;
  bool tensors = false;
  std::vector<int64_t> contexts;
  bool plan = false;  // show the kernels of steps instead
  // With plan: decode steps with this many sequences, and steps that read prompts of this length
  std::vector<int64_t> batches = {1, 8};
  std::vector<int64_t> prompts = {512}, depths = {4096};
  std::string card;  // one of known_cards(); empty: this machine's, or an H200 if there is none
};

struct TokenizeOptions {
  OutputOptions output;
  hub::Settings hub;
  std::filesystem::path tokenizer;  // a model, tokenizer.json or rank file; empty: o200k_harmony
  TextInput input;
  bool special = false;
  bool decode = false;  // the input is token ids
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
  BackendKind a = BackendKind::kReference, b = BackendKind::kCpu;
  TextInput prompt;
  double tolerance = 1e-4;
};

struct PullOptions {
  OutputOptions output;
  hub::Settings hub;
  std::string model;
  std::string revision = "main";
  std::vector<std::string> include;
};

struct ListOptions {
  OutputOptions output;
  hub::Settings hub;
};

struct PsOptions {
  OutputOptions output;
  hub::Settings hub;
  std::filesystem::path records;  // where servers record themselves; empty: nowhere
};

struct LaunchOptions {
  std::string program;
  std::vector<std::string> arguments;
  std::string model;  // to serve where no server runs; empty: the one that comes with nibble
  int port = 8000;
  std::string server_key;  // empty: the server asks for none
  bool print = false;
  std::filesystem::path profiles;  // a folder in it for each program; empty: nowhere
};

struct RemoveOptions {
  OutputOptions output;
  hub::Settings hub;
  std::string model;
  std::string revision;  // empty: all
  bool yes = false;
};

// kAuto: GGUF for a name that ends in .gguf.
enum class CheckpointFormat { kAuto, kSafetensors, kGguf };

struct SynthOptions {
  OutputOptions output;
  std::string preset;
  int64_t layers = 0;  // 0: the preset's
  uint64_t seed = 1;
  CheckpointFormat format = CheckpointFormat::kAuto;
  int64_t part_bytes = 0;  // of GGUF; 0: one file
  std::filesystem::path destination;
};

struct ConvertOptions {
  ModelOptions model;
  OutputOptions output;
  DType dense = DType::kGgmlQ8;
  int64_t part_bytes = 0;  // 0: one file
  std::filesystem::path destination;
};

struct QuantizeOptions {
  OutputOptions output;
  hub::Settings hub;
  std::filesystem::path input;  // a safetensors file, or a model whose experts are not quantised
  std::filesystem::path destination;
  std::string format = "mxfp4";
  MxScaleRule scale = MxScaleRule::kOcpFloor;
  std::string tensors;  // glob over names; files only
};

enum class BenchFormat { kMarkdown, kJson };
struct BenchOptions {
  ModelOptions model = {.run = {.max_num_batched_tokens = 8192}};
  OutputOptions output;
  BenchFormat format = BenchFormat::kMarkdown;
  // Each sorted, without repetition
  std::vector<int64_t> prompts = {512};    // tokens; 0: no such test
  std::vector<int64_t> generates = {128};  // tokens; 0: no such test
  std::vector<int64_t> depths = {0};       // tokens before them
  std::vector<int64_t> batches = {1};      // sequences that generate together
  int repetitions = 5;
  bool profile = false;                   // also show where the time goes
  bool tune = false;                      // instead of the tests
  engine::SpeculationLimits speculation;  // what guesses cost and gain, instead of the tests; off: the tests
  // With speculation: the chance that a guess is right, given those before it. Above 1: the tokens that a step gives a
  // sequence, the model's own included.
  std::vector<double> acceptances = {0, 0.5, 0.7, 0.9};
  std::vector<std::string> recorded;  // of it: files of prompts and answers
  int64_t draft_vocab = 32000;        // of it: a dummy head's vocabulary, at most the model's
  std::string command;                // as it was typed
  Variables environment;
  std::vector<std::string> compare;  // two results' files to compare, instead
  bool allow_mismatch = false;       // compare results of other devices or models, and results that do not name theirs
  std::filesystem::path report;      // page to write; empty: none
};

struct LoadOptions {
  Settings settings;
  OutputOptions output;
  std::string base_url, api_key;
  std::filesystem::path cacert;  // that signs an https server's certificate; empty: the system's
  bool insecure = false;         // no certificate is checked
  client::Workload workload;
  bool vocab_given = false;                    // otherwise --vocab-size is the model's, if it is known
  double think_time = 0;                       // seconds between turns, on average
  std::string tools, json_schema;              // option_parts.h; empty: none
  std::vector<int64_t> concurrency = {1};      // sorted, without repetition
  double request_rate = 0;                     // per second, instead of concurrency; 0: not used
  int64_t num_prompts = -1, num_warmups = -1;  // per point; below 0: from its concurrency or its rate
  int64_t prompts_per_client = 10, warmups_per_client = 2;
  int repetitions = 1;
  int timeout = 600;             // seconds, of a request
  int gpus = 1;                  // of the server
  std::string device;            // the server's, for the result to name
  std::filesystem::path report;  // as bench's
  std::string command;           // as it was typed
  Variables environment;
};

enum class VerifyLevel : uint8_t { kSmoke, kPaths, kCorrectness, kStress, kPerformance, kRegression, kFeatures };
[[nodiscard]] std::string_view name_of(VerifyLevel level);  // "1.5"

struct VerifyOptions {
  ModelOptions model = {.when_absent = WhenAbsent::kOffer};
  OutputOptions output;
  // In order, without repetition.
  std::vector<VerifyLevel> levels = {VerifyLevel::kSmoke,   VerifyLevel::kPaths,       VerifyLevel::kCorrectness,
                                     VerifyLevel::kStress,  VerifyLevel::kPerformance, VerifyLevel::kRegression,
                                     VerifyLevel::kFeatures};
  std::string base_url, api_key;  // of a server to verify; empty: verify in this process
  std::string served_model;       // the model to ask for; empty: the first that the server lists
  std::filesystem::path cacert;   // as of LoadOptions
  bool insecure = false;
  std::filesystem::path report;  // as bench's
  // Level 5.
  std::filesystem::path baseline;       // to compare with; empty: the one known for this device and model
  std::filesystem::path save_baseline;  // where to keep this run as one; empty: nowhere
  // Level 6.
  std::string features;        // whose combinations are tried; empty: those of the backend
  int most_combinations = 64;  // that are tried at most
  int rounds = 0;  // each combination is measured this often, in turn; 0: depends on how long a model takes to load
  std::vector<std::string> presets;  // names in features.h, instead of combinations
  std::string command;               // as it was typed
  Variables environment;
};

struct PredictOptions {
  // Only its configuration is read.
  ModelOptions model = {
      .model = "gpt-oss-120b", .load_format = LoadFormat::kDummy, .run = {.max_num_batched_tokens = 8192}};
  OutputOptions output;
  std::string card;                       // one of known_cards()
  bool neutral = false;                   // as if it were an sm_80 card
  std::string link;                       // one of known_links(), between several cards; empty: the card's usual one
  double link_us = -1;                    // the fixed part of a short sum; below 0: the link's own
  double host_read = 80, host_link = 25;  // GB/s, of experts on the host: its memory's reads, copies to the card
  // Each sorted, without repetition
  std::vector<int64_t> batches = {1, 2, 8, 32, 256};  // sequences that generate; 0: none
  std::vector<int64_t> prompts = {512, 2048, 8192};   // tokens; 0: none
  std::vector<int64_t> depths = {2048, 8192, 32768};  // tokens before them
};

enum class LogFormat : uint8_t { kAuto, kText, kJson };  // auto: text on a terminal, else JSON

enum class AnyModelName : uint8_t { kNone, kClaude, kAll };  // claude: names that begin with claude-

// As vLLM's --kv-events-config (server/kv_publisher.h).
struct KvEventOptions {
  bool on = false;
  std::string endpoint = "tcp://*:5557", replay_endpoint, topic;
  bool maps = false;
  int64_t kept_batches = 10'000;
  int most_unsent = 100'000;
};

struct ServeOptions {
  ModelOptions model = {.when_absent = WhenAbsent::kOffer};
  OutputOptions output;
  std::vector<std::string> served_names;  // empty: as the model was named
  int max_num_seqs = 256;
  int64_t max_waiting = 1024;
  int64_t kv_tokens = 0;        // 0: chosen by serve.cpp with_memory()
  int64_t kv_memory_bytes = 0;  // what chooses them, of each engine or card; 0: the memory that is there
  int max_num_partial_prefills = 8;
  int max_long_partial_prefills = 0;         // 0: no limit of their own
  int64_t long_prefill_token_threshold = 0;  // 0: no prompt counts as long
  double target_itl = 0;                     // milliseconds; 0: from measured times
  bool by_priority = false;                  // --scheduling-policy priority
  bool prefix_cache = true;
  int replicas = 1;                      // --data-parallel-size
  bool headless = false;                 // must not serve: it is a rank above 0
  std::optional<bool> async_scheduling;  // none: on if the backend computes while the host goes on
  KvEventOptions kv_events;
  backend::SamplingParams sampling;  // where a request does not say, and the next two
  text::ReasoningEffort effort = text::ReasoningEffort::kMedium;
  bool include_usage = false;                 // streams end with the usage
  bool unknown_fields = true, images = true;  // let pass
  AnyModelName any_model_name = AnyModelName::kClaude;
  std::string host = "127.0.0.1";
  int port = 8000;
  int http_threads = 2;
  std::vector<std::string> api_keys;
  std::string certificate_file, key_file;
  std::string allowed_origin = "*";
  int64_t max_body_bytes = int64_t{32} << 20, max_header_bytes = int64_t{16} << 10;
  int max_connections = 4096;
  int request_timeout = 60;   // seconds, for a body to arrive
  int shutdown_timeout = 30;  // seconds
  bool log_requests = true, log_prompts = false;
  LogFormat log_format = LogFormat::kAuto;
  std::string date;               // empty: today
  std::filesystem::path records;  // where this server records itself for nibble ps; empty: nowhere
};

struct FeaturesOptions {
  bool markdown = false, json = false;
};
struct ManOptions {};
struct CompletionOptions {
  std::string shell;
};

// In the order of --help.
using Command = std::variant<RunOptions, ChatOptions, ServeOptions, InspectOptions, TokenizeOptions, QuantizeOptions,
                             SynthOptions, ConvertOptions, PerplexityOptions, CompareOptions, PullOptions, ListOptions,
                             PsOptions, LaunchOptions, RemoveOptions, PredictOptions, BenchOptions, LoadOptions,
                             VerifyOptions, FeaturesOptions, ManOptions, CompletionOptions>;
enum class CommandId : uint8_t {
  kRun,
  kChat,
  kServe,
  kInspect,
  kTokenize,
  kQuantize,
  kSynth,
  kConvert,
  kPerplexity,
  kCompare,
  kPull,
  kList,
  kPs,
  kLaunch,
  kRemove,
  kPredict,
  kBench,
  kLoad,
  kVerify,
  kFeatures,
  kMan,
  kCompletion
};
[[nodiscard]] Command made(CommandId id);  // with its defaults

// Throws Error(kInvalidRequest) for flags that need each other, and Error(kUnsupported) for what does not go together.
void require_speculation(const ModelOptions& options);

// What --speculative draft runs beside the model, as a model of its own: on the same backend, in the same way.
[[nodiscard]] ModelOptions draft_options(const ModelOptions& options);

// For people: "no speculation", "speculation suffix, up to 8 tokens".
[[nodiscard]] std::string describe_speculation(const engine::SpeculationLimits& limits);

// Texts named on a command line, of at most 2^30 bytes. Throws Error(kIo) for what cannot be read.

// The value of an option that takes a text, a file or standard input.
[[nodiscard]] std::string read_text(const TextInput& input);
// Reads anything that has a path: a file, a pipe, a shell's <(…).
[[nodiscard]] std::string read_text(const std::filesystem::path& path);

// What --tools and --json-schema of nibble load name: files, or "builtin", sets that are here. One line of JSON. Throws
// Error(kInvalidRequest) for what is not JSON.
// The file's JSON, in its order, for a flag. Throws Error(kInvalidRequest) that names flag, file and place.
[[nodiscard]] nlohmann::ordered_json read_json_file(std::string_view flag, const std::filesystem::path& path);
[[nodiscard]] std::string tools_named(const std::string& name);
[[nodiscard]] std::string json_schema_named(const std::string& name);

// What main does next: run a command, or print a text (help, version) and end.
struct Exit {
  int code = 0;
  std::string out;  // for standard output
};

// Where no command is named.
struct GreetOptions {
  hub::Settings hub;
  std::filesystem::path records;  // as of PsOptions
};

// Throws Error(kInvalidRequest) for an invalid command line.
[[nodiscard]] std::variant<Command, GreetOptions, Exit> parse_command_line(int argc, const char* const* argv);

// The best instruction set that NIBBLE_CPU_MASK leaves to this process (docs/measuring.md); kAuto: all. Throws
// Error(kInvalidRequest).
[[nodiscard]] backend::CpuIsa cpu_mask();
// The architecture that NIBBLE_CUDA_ARCH makes this process treat its cards as (docs/measuring.md); none: their own.
// Throws Error(kInvalidRequest).
[[nodiscard]] std::optional<backend::cuda::CardArch> card_mask();

// Exit codes of the program; `nibble --help` lists them.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,      // a bug, or an error of no other kind
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
