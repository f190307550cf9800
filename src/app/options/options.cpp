#include "app/options/options.h"

#include "app/options/build_facts.h"
#include "app/options/feature_options.h"
#include "app/options/features.h"
#include "app/options/flags.h"
#include "app/options/foreign_flags.h"
#include "app/options/help.h"
#include "app/options/model_options.h"
#include "app/options/option_parts.h"
#include "app/options/settings.h"
#include "app/options/vllm.h"
#include "backend/cpu/isa.h"
#include "backend/cuda/card/cards.h"
#include "base/error.h"
#include "base/random.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <unistd.h>

namespace nibble::app {
namespace {

std::optional<std::string> environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// All variables; entries that are not NAME=VALUE are left out.
Variables all_variables() {
  Variables all;
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
    const std::string_view pair = *at;
    if (const size_t mark = pair.find('='); mark != std::string_view::npos)
      all.emplace(pair.substr(0, mark), pair.substr(mark + 1));
  }
  return all;
}

// The variables that may change what runs or how fast, for results to record. No secrets.
Variables telling_variables() {
  Variables telling;
  for (const auto& [name, value] : all_variables()) {
    const auto begins = [&name](std::string_view with) { return name.starts_with(with); };
    const auto holds = [&name](std::string_view part) { return name.find(part) != std::string::npos; };
    if (holds("KEY") || holds("TOKEN") || holds("SECRET") || holds("PASSWORD")) continue;
    for (const char* prefix :
         {"NIBBLE_", "CUDA_", "NVIDIA_", "NCCL_", "OMP_", "GOMP_", "KMP_", "MALLOC_", "LD_PRELOAD", "VLLM_"})
      if (begins(prefix)) telling.emplace(name, value);
  }
  return telling;
}

// As it was typed, without secrets.
std::string typed_command(int argc, const char* const* argv) {
  std::string command = "nibble";
  bool secret = false;
  for (const std::string_view word : std::span(argv, static_cast<size_t>(argc)).subspan(1)) {
    const bool holds_key = word.starts_with("--api-key=");
    command += secret || holds_key ? (secret ? " (secret)" : " --api-key=(secret)") : fmt::format(" {}", word);
    secret = word == "--api-key";
  }
  return command;
}

void add_output(Flags flags, OutputOptions& o) {
  flags.turn("--json", o.json, "Print one JSON object instead of text");
  o.dumb_terminal = environment("TERM") == "dumb";
  if (!environment("NO_COLOR").value_or("").empty()) o.color = ColorMode::kNever;  // https://no-color.org
  flags.turn("-q,--quiet", o.quiet, "No progress and no summary");
  flags.group(HelpGroup::kExpert);
  add_choice<ColorMode>(
      flags, "--color",
      {o.color, {{"auto", ColorMode::kAuto}, {"always", ColorMode::kAlways}, {"never", ColorMode::kNever}}},
      "Colours; auto: on a terminal, unless NO_COLOR is set");
  flags.group(HelpGroup::kCommon);
}

std::pair<int32_t, float> parse_bias(const std::string& text) {
  const size_t colon = text.find(':');
  size_t id_end = 0, bias_end = 0;
  try {
    if (colon != std::string::npos) {
      const int id = std::stoi(text.substr(0, colon), &id_end);
      const float bias = std::stof(text.substr(colon + 1), &bias_end);
      if (id_end == colon && bias_end == text.size() - colon - 1) return {id, bias};
    }
  } catch (const std::exception&) {  // falls through to the message
  }
  refuse_value("--logit-bias", "want ID:BIAS such as 200002:-100, found " + text);
}

void add_generate(Flags flags, GenerateOptions& o) {
  backend::SamplingParams& s = o.sampling;
  std::array<uint8_t, 4> seed{};
  fill_unguessable(seed);
  s.seed = std::bit_cast<uint32_t>(seed);
  flags.show_defaults(true);
  flags.value("-n,--max-tokens", o.max_tokens, "Most tokens to generate; 0: until the model stops").whole(0, 1 << 24);
  add_sampling(flags, s, "");
  flags.show_defaults(false);
  flags
      .take_all(
          "--logit-bias",
          [&s](const std::vector<std::string>& values) {
            for (const std::string& value : values) s.logit_bias.push_back(parse_bias(value));
          },
          "ID:BIAS, repeatable")
      .one_value();
  add_seed(flags, "--seed", s.seed, "Same seed, same text; default: random, shown in the summary");
  flags.value("--stop", o.stop, "Stop before this text; repeatable").one_value().not_empty();
  flags.turn("--ignore-eos", o.ignore_eos, "Do not stop at the model's end tokens");
  flags.group(HelpGroup::kCommon);
}

Flag add_text(Flags flags, TextInput& input, const std::string& what) {
  const Flag text = flags.value("-p,--prompt", input.text, what);
  Flag file = flags.value("-f,--file", input.file, "The same from a file; - is standard input").not_empty();
  file.excludes(text);
  flags.then([&input, text, file] { input.given = text.given() || file.given(); });
  return text;
}

// Where input is kept; empty if the environment names no place.
std::filesystem::path history_path() {
  const std::filesystem::path state = environment("XDG_STATE_HOME").value_or("");
  if (state.is_absolute()) return state / "nibble/history";  // others are ignored: XDG Base Directory Specification
  const std::filesystem::path home = environment("HOME").value_or("");
  return home.is_absolute() ? home / ".local/state/nibble/history" : std::filesystem::path();
}

// Where servers record themselves: per login session if there are sessions, otherwise where state is kept.
std::filesystem::path server_records_path() {
  const std::filesystem::path runtime = environment("XDG_RUNTIME_DIR").value_or("");
  if (runtime.is_absolute()) return runtime / "nibble";
  const std::filesystem::path history = history_path();
  return history.empty() ? history : history.parent_path() / "servers";
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[11];
  return std::strftime(text, sizeof text, "%Y-%m-%d", &local) > 0 ? text : "";
}

bool is_date(const std::string& text) {
  int year = 0, month = 0, day = 0;
  const auto number = [&](size_t at, size_t count, int& into) {
    const char* end = text.data() + at + count;
    return text[at] >= '0' && std::from_chars(text.data() + at, end, into).ptr == end;  // no sign
  };
  return text.size() == 10 && number(0, 4, year) && text[4] == '-' && number(5, 2, month) && text[7] == '-' &&
         number(8, 2, day) &&
         std::chrono::year_month_day(std::chrono::year(year), std::chrono::month(static_cast<unsigned>(month)),
                                     std::chrono::day(static_cast<unsigned>(day)))
             .ok();
}

void add_date(Flags flags, std::string& into) {
  flags.value("--date", into, "Current date told to the model, YYYY-MM-DD; default: today")
      .check([](const std::string& text) {
        return is_date(text) ? std::string() : "want a day as YYYY-MM-DD, found " + text;
      });
}

std::string version_text() {
  return fmt::format("nibble {} (commit {}), licence Apache-2.0", NIBBLE_VERSION, build_facts().commit);
}

// Every command's options, filled while parsing.
struct All {
  RunOptions run;
  ChatOptions chat;
  ServeOptions serve;
  InspectOptions inspect;
  TokenizeOptions tokenize;
  PerplexityOptions perplexity;
  CompareOptions compare;
  SynthOptions synth;
  ConvertOptions convert;
  QuantizeOptions quantize;
  BenchOptions bench;
  LoadOptions load;
  VerifyOptions verify;
  PredictOptions predict;
  PullOptions pull;
  ListOptions list;
  PsOptions ps;
  RemoveOptions remove;
};

void set_hub(All& all, const hub::Settings& settings) {
  for (ModelOptions* o :
       {&all.run.model, &all.chat.model, &all.serve.model, &all.inspect.model, &all.perplexity.model,
        &all.compare.model, &all.convert.model, &all.bench.model, &all.predict.model, &all.verify.model})
    o->hub = settings;
  all.tokenize.hub = all.quantize.hub = all.pull.hub = all.list.hub = all.ps.hub = all.remove.hub = settings;
}

void add_run(Flags flags, RunOptions& o) {
  const Flag prompt = add_text(flags, o.prompt, "Text to continue");
  add_model(flags, o.model, prompt);
  add_pull(flags, o.model.when_absent);
  add_generate(flags, o.generate);
  flags.group(HelpGroup::kExpert);
  flags.turn("--special", o.special, "Recognise special tokens such as <|start|> in the prompt");
  flags.group(HelpGroup::kCommon);
  add_backend(flags, o.model);
  add_runtime(flags, o.model);
  add_group(flags, o.model.group);
  add_print_config(flags, o.model.settings);
  add_limits(flags, o.model, {"4096 or what -n needs", ""});
  add_speculation(flags, o.model);
  add_output(flags, o.output);
}

void add_chat(Flags flags, ChatOptions& o) {
  const Flag prompt = add_text(flags, o.prompt, "Ask one question and exit");
  add_model(flags, o.model, prompt);
  flags.value("--instructions", o.instructions, "Instructions to the model (Harmony's developer message)");
  flags.value("--tools", o.tools, "JSON file with functions the model may call, as in OpenAI's \"tools\"").not_empty();
  add_effort(flags, o.effort, "");
  flags.turn("--show-reasoning", o.show_reasoning, "Show the reasoning as it arrives");
  o.history = history_path();
  flags.group(HelpGroup::kExpert);
  flags.turn("!--no-history", o.keeps_history, "Do not keep what is typed in a file, nor read it");
  o.date = today();
  add_date(flags, o.date);
  flags.group(HelpGroup::kCommon);
  add_pull(flags, o.model.when_absent);
  add_generate(flags, o.generate);
  add_backend(flags, o.model);
  add_runtime(flags, o.model);
  add_print_config(flags, o.model.settings);
  add_limits(flags, o.model, {"8192", ""});
  add_speculation(flags, o.model);
  add_output(flags, o.output);
}

void add_serve(Flags flags, ServeOptions& o) {
  add_serve_flags(flags, o);
  add_pull(flags, o.model.when_absent);
  add_backend(flags, o.model);
  add_runtime(flags, o.model);
  add_group(flags, o.model.group);
  add_print_config(flags, o.model.settings);
  add_limits(flags, o.model, {"the model's", "auto"});
  add_speculation(flags, o.model);
  add_load_format(flags, o.model.load_format);
  flags.group(HelpGroup::kExpert);
  add_date(flags, o.date);
  flags.group(HelpGroup::kCommon);
  add_output(flags, o.output);
  add_vllm_flags(flags, o);
}

// A known card by its word. The words in `others` come first; the first of them stands for an empty value.
Flag add_card(Flags flags, std::string& into, const std::vector<std::string>& others, const std::string& help) {
  Words words{.names = others, .usual = others.empty() ? "" : others.front(), .take = {}};
  for (const backend::cuda::KnownCard& card : backend::cuda::known_cards()) words.names.push_back(card.word);
  words.take = [&into, names = words.names, first = others.size()](size_t at) { into = at < first ? "" : names[at]; };
  return add_words(flags, "--card", words, fmt::format("{}: {}", help, fmt::join(words.names, ", "))).type("CARD");
}

void add_inspect(Flags flags, InspectOptions& o) {
  add_model(flags, o.model);
  flags.turn("--tensors", o.tensors, "List every tensor");
  flags.value("--context", o.contexts, "Context lengths to compute memory for; repeatable").whole(1, 1 << 24);
  add_card(flags, o.card, {"auto"},
           "Which contexts a card has memory for; with --plan --backend cuda, the card that runs the steps, auto: this "
           "machine's, else h200");
  const Flag plan =
      flags.turn("--plan", o.plan, "What would run for a step, stage by stage: kernels, tiles, bytes, flops");
  const size_t before = flags.all().size();
  add_list(flags, "-b,--batch", {o.batches, 0, 1024}, "With --plan: steps of so many sequences that generate; 0: none");
  add_list(flags, "-p,--n-prompt", {o.prompts, 0, 65536}, "With --plan: prompts of so many tokens; 0: none");
  add_list(flags, "-d,--n-depth", {o.depths, 0, 1 << 24}, "With --plan: tokens in the context before");
  flags
      .value("--max-num-batched-tokens", o.model.run.max_num_batched_tokens,
             "With --plan: most prompt tokens computed in one step; of a longer prompt the first step and the last one")
      .whole(1, 65536)
      .usual(fmt::format("{}, with --backend cuda {}", backend::kHostStepTokens, backend::kCardStepTokens));
  add_backend(flags, o.model);
  add_kernels(flags, o.model);
  add_ranks(flags, o.model);
  std::vector<Flag> all = flags.all();
  for (size_t i = before; i < all.size(); ++i) all[i].needs(plan);
  add_output(flags, o.output);
}

void add_tokenize(Flags flags, TokenizeOptions& o) {
  add_text(flags, o.input, "Text to tokenise (default: standard input)");
  flags
      .value("-m,--model,--tokenizer", o.tokenizer,
             "A model (directory, .gguf or name), tokenizer.json or tiktoken rank file; default: o200k_harmony")
      .not_empty();
  flags.turn("--special", o.special, "Recognise special tokens in the text");
  flags.turn("--decode", o.decode, "The input is token ids: print their text");
  flags.turn("--count", o.count, "Print only how many tokens there are");
  add_output(flags, o.output);
}

void add_perplexity(Flags flags, PerplexityOptions& o) {
  add_text(flags, o.input, "Text to score");
  add_model(flags, o.model);
  flags.value("--context", o.context, "Tokens per window; each token is scored from those before it in its window")
      .whole(2, 1 << 20)
      .usual(fmt::format("{}", o.context));
  add_backend(flags, o.model);
  add_runtime(flags, o.model);
  add_print_config(flags, o.model.settings);
  add_limits(flags, o.model, {"--context", ""});
  add_output(flags, o.output);
}

void add_compare(Flags flags, CompareOptions& o) {
  add_text(flags, o.prompt, "Text of the step (default: a built-in sentence)");
  add_model(flags, o.model);
  add_choice(flags, "--a", backends(o.a), "One backend");
  add_choice(flags, "--b", backends(o.b), "The other backend");
  flags.value("--tolerance", o.tolerance, "Largest difference, relative to the stage's root mean square")
      .positive()
      .usual(fmt::format("{}", o.tolerance));
  add_runtime(flags, o.model);
  add_output(flags, o.output);
}

void add_part_bytes(Flags flags, int64_t& into) {
  flags.value("--part-bytes", into, "Split a GGUF file into parts of so many bytes of tensors; 0: one file")
      .whole(0, int64_t{1} << 50);
}

void add_synth(Flags flags, SynthOptions& o) {
  flags.value("--preset", o.preset, "gpt-oss-20b, gpt-oss-120b or tiny").required();
  flags.value("--layers", o.layers, "Only so many layers").whole(1, 1000);
  add_seed(flags, "--seed", o.seed, "Seed of the random weights");
  add_choice<CheckpointFormat>(flags, "--format",
                               {o.format,
                                {{"auto", CheckpointFormat::kAuto},
                                 {"safetensors", CheckpointFormat::kSafetensors},
                                 {"gguf", CheckpointFormat::kGguf}}},
                               "auto: gguf where the output's name ends in .gguf");
  add_part_bytes(flags, o.part_bytes);
  flags.value("-o,--output", o.destination, "Directory to write, absent or empty; or a .gguf file").required();
  add_output(flags, o.output);
}

void add_convert(Flags flags, ConvertOptions& o) {
  add_model(flags, o.model);
  add_seed(flags, "--dummy-seed", o.model.dummy_seed, "Seed of the dummy weights");
  using checkpoint::GgmlType;
  add_choice<GgmlType>(
      flags, "--dense",
      {o.dense, {{"q8_0", GgmlType::kQ8}, {"bf16", GgmlType::kBf16}, {"f16", GgmlType::kF16}, {"f32", GgmlType::kF32}}},
      "Type of attention and embedding matrices; q8_0 and f16 round");
  add_part_bytes(flags, o.part_bytes);
  flags.value("-o,--output", o.destination, "GGUF file to write").required();
  add_output(flags, o.output);
}

void add_quantize(Flags flags, QuantizeOptions& o) {
  flags.value("input", o.input, "A safetensors file, or a model (directory or name) whose experts are bf16").required();
  flags.value("-o,--output", o.destination, "File or directory to write").required();
  add_choice<std::string>(flags, "--format",
                          {o.format,
                           {{"mxfp4", "mxfp4"},
                            {"mxfp8_e4m3", "mxfp8_e4m3"},
                            {"mxfp8_e5m2", "mxfp8_e5m2"},
                            {"mxfp6_e2m3", "mxfp6_e2m3"},
                            {"mxfp6_e3m2", "mxfp6_e3m2"}}},
                          "Element format; a model's experts: mxfp4");
  add_choice<MxScaleRule>(
      flags, "--scale",
      {o.scale, {{"ocp", MxScaleRule::kOcpFloor}, {"ceil", MxScaleRule::kCeil}, {"round", MxScaleRule::kRoundLlama}}},
      "Block scale: ocp (MX v1.0), ceil (never clips) or round (llama.cpp)");
  flags.value("--tensors", o.tensors, "Quantise only tensors whose name matches, * and ? allowed (files only)")
      .not_empty();
  add_output(flags, o.output);
}

void add_bench(Flags flags, BenchOptions& o) {
  constexpr int64_t kMostTokens = 1 << 24, kMostSequences = 1024;
  add_model(flags, o.model);
  add_list(flags, "-p,--n-prompt", {o.prompts, 0, kMostTokens}, "Prompts to process, in tokens; 0: none");
  add_list(flags, "-n,--n-gen", {o.generates, 0, kMostTokens}, "Tokens to generate; 0: none");
  add_list(flags, "-d,--n-depth", {o.depths, 0, kMostTokens}, "Tokens in the context before");
  add_list(flags, "-b,--batch", {o.batches, 1, kMostSequences}, "Sequences that generate together");
  flags.value("-r,--repetitions", o.repetitions, "Times each test is measured")
      .whole(1, 1000)
      .usual(fmt::format("{}", o.repetitions));
  const Flag output = add_choice<BenchFormat>(
      flags, "-o,--output", {o.format, {{"md", BenchFormat::kMarkdown}, {"json", BenchFormat::kJson}}},
      "The table's format");
  flags.turn("--profile", o.profile,
             "Also show where the time goes, by stage, on a GPU by kernel; takes one more repetition");
  const Flag compare =
      flags.value("--compare", o.compare, "Compare two results of --json instead, A.json B.json, row by row")
          .type("A B");
  Flag report = add_report(flags, o.report);
  const Flag method =
      add_bench_speculation(flags, o,
                            "Instead: what steps with guesses take, from which acceptance on they pay, and what "
                            "they give. The proposer named drafts for --speculative-texts; eagle3: a dummy head of "
                            "the model's shape drafts, and its time counts; draft: so does the one named");
  report.excludes(method);
  flags.group(HelpGroup::kPerformance);
  add_acceptances(flags, o.acceptances).needs(method);
  flags
      .value("--speculative-texts", o.recorded,
             "Lines of JSON with the texts set, prompt and answer (bench/prompts): drafts are as right as the "
             "proposer's would be there")
      .type("FILE")
      .needs(method);
  flags.group(HelpGroup::kExpert);
  flags.value("--speculative-draft-vocab", o.draft_vocab, "eagle3: tokens that the head can draft, at most the model's")
      .whole(1, int64_t{1} << 30)
      .usual(fmt::format("{}", o.draft_vocab))
      .needs(method);
  flags
      .turn("--allow-mismatch", o.allow_mismatch,
            "Compare results of other devices or models, or of unknown ones, all the same")
      .needs(compare);
  flags
      .turn("--tune", o.tune,
            "Instead: from how many tokens on which kernels are faster on this card, over 4 dummy layers of the "
            "model's shapes, for the Tuned of an architecture (src/backend/cuda/arch)")
      .excludes(report);
  flags.group(HelpGroup::kCommon);
  add_backend(flags, o.model);
  o.model.run.max_num_batched_tokens = 8192;
  add_runtime(flags, o.model);
  add_print_config(flags, o.model.settings);
  add_limits(flags, o.model, {"the model's", ""});
  add_output(flags, o.output);
  flags.get("--json").excludes(output);
}

void add_load(Flags flags, LoadOptions& o) {
  o.api_key = environment("OPENAI_API_KEY").value_or("");
  add_load_flags(flags, o);
  add_output(flags, o.output);
}

void add_verify(Flags flags, VerifyOptions& o) {
  o.api_key = environment("OPENAI_API_KEY").value_or("");
  add_verify_flags(flags, o);
  add_output(flags, o.output);
}

void add_links(Flags flags, PredictOptions& o) {
  std::vector<std::string> words;
  for (const backend::cuda::KnownLink& link : backend::cuda::known_links()) words.push_back(link.word);
  flags.group(HelpGroup::kPerformance);
  flags.value("--link", o.link,
              fmt::format("Between several cards: {}; default what such cards usually have", fmt::join(words, ", ")));
  flags.value("--link-us", o.link_us, "Microseconds that a short sum over the cards takes; default the link's")
      .within(0.0, 1e6);
  flags.group(HelpGroup::kCommon);
}

void add_predict(Flags flags, PredictOptions& o) {
  o.model.model = "gpt-oss-120b";
  o.model.load_format = LoadFormat::kDummy;
  o.model.run.max_num_batched_tokens = 8192;
  add_model_name(flags, o.model.model, "; default gpt-oss-120b. Nothing is read but its configuration");
  add_card(flags, o.card, {}, "The card").required();
  add_list(flags, "-b,--batch", {o.batches, 0, 1024}, "Steps of so many sequences that generate; 0: none");
  add_list(flags, "-p,--n-prompt", {o.prompts, 0, 1 << 24}, "Prompts of so many tokens; 0: none");
  add_list(flags, "-d,--n-depth", {o.depths, 0, 1 << 24},
           "Tokens of context before; more than one sequence: after the fewest of them, prompts: after none");
  add_ranks(flags, o.model);
  add_links(flags, o);
  add_kernels(flags, o.model, KernelFlags::kOfCards);
  flags.group(HelpGroup::kPerformance);
  flags.value("--max-num-batched-tokens", o.model.run.max_num_batched_tokens, "Most prompt tokens computed in one step")
      .whole(1, 65536)
      .usual(fmt::format("{}", o.model.run.max_num_batched_tokens));
  flags
      .value("--gpu-memory-utilization", o.model.run.gpu_memory_utilization,
             "Share of the card's memory to use at most; default 0.92")
      .within(0.01, 1.0);
  flags.group(HelpGroup::kExpert);
  flags.turn("--neutral", o.neutral, "As if it were an sm_80 card: only the kernels that every card runs");
  flags.group(HelpGroup::kCommon);
  add_output(flags, o.output);
}

void add_features(Flags flags, bool& markdown, bool& json) {
  const Flag page = flags.turn("--markdown", markdown, "Print the page docs/feature-matrix.md");
  flags.turn("--json", json, "Print one JSON object instead of text").excludes(page);
}

std::string features_told(bool markdown, bool json) {
  const CommandFacts flags = feature_flags();
  return json ? features_json(flags).dump(2) + "\n" : markdown ? features_page(flags) : features_text(flags);
}

void add_pull_command(Flags flags, PullOptions& o) {
  flags.value("model", o.model, "ORG/NAME on the Hub, or gpt-oss-20b and gpt-oss-120b for OpenAI's")
      .required()
      .not_empty();
  flags.value("--revision", o.revision, "Branch, tag or commit").not_empty().usual(o.revision);
  flags
      .value("--include", o.include,
             "Only files whose path matches, * and ? allowed; repeatable; default: all but original/ and metal/, which "
             "hold the same weights")
      .one_value()
      .not_empty();
  add_output(flags, o.output);
}

void add_remove(Flags flags, RemoveOptions& o) {
  flags.value("model", o.model, "ORG/NAME as nibble list shows it").required().not_empty();
  flags.value("--revision", o.revision, "Only this revision, and what no other uses; default: all").not_empty();
  flags.turn("-y,--yes", o.yes, "Without a question");
  add_output(flags, o.output);
}

// For a command that runs a model.
void resolve_settings_of(const CommandLine& line, const std::string& name, All& all) {
  const Flags serve = *line.find("serve");
  const Variables variables = all_variables();
  const std::pair<const char*, Settings&> runs_a_model[] = {{"run", all.run.model.settings},
                                                            {"chat", all.chat.model.settings},
                                                            {"serve", all.serve.model.settings},
                                                            {"bench", all.bench.model.settings},
                                                            {"perplexity", all.perplexity.model.settings},
                                                            {"verify", all.verify.model.settings}};
  const std::pair<const char*, ModelOptions&> runs_in_a_group[] = {{"run", all.run.model}, {"serve", all.serve.model}};
  for (const auto& [command, model] : runs_in_a_group)
    if (name == command)
      std::ranges::move(group_settings(*line.find(name), variables), std::back_inserter(model.settings.implied));
  for (const auto& [command, settings] : runs_a_model)
    if (name == command) resolve_settings(*line.find(name), settings, {serve, variables});
  for (const auto& [command, model] : runs_in_a_group)
    if (name == command) take_group(*line.find(name), variables, model);
  if (name == "load") resolve_settings(*line.find(name), all.load.settings, {serve, {}});  // serve's are not its own
}

}  // namespace

std::variant<Command, Exit> parse_command_line(int argc, const char* const* argv) {
  CommandLine line(version_text());
  const auto command = [&line](const char* name, const char* what) { return line.command(name, what); };
  All all;
  add_run(command("run", "Continue a text"), all.run);
  add_chat(command("chat", "Talk to the model; piped text is one question"), all.chat);
  const Flags serve = command("serve", "OpenAI's API and a chat page over HTTP");
  add_serve(serve, all.serve);
  add_inspect(command("inspect", "What a model holds and needs: tensors, bytes, memory per context"), all.inspect);
  add_tokenize(command("tokenize", "Text to token ids and back"), all.tokenize);
  add_quantize(command("quantize", "Quantise tensors to an MX format"), all.quantize);
  add_synth(command("synth", "Write a checkpoint of true shapes with random weights"), all.synth);
  add_convert(command("convert", "Write a model as llama.cpp's GGUF file"), all.convert);
  add_perplexity(command("perplexity", "How well the model predicts a text"), all.perplexity);
  add_compare(command("compare", "Run one step on two backends and name the first difference"), all.compare);
  add_pull_command(command("pull", "Get a model from Hugging Face's Hub into its cache"), all.pull);
  add_output(command("list", "The models on this machine: where, format, size, revision"), all.list.output);
  add_output(command("ps", "Your servers on this machine: model, load, tokens per second"), all.ps.output);
  all.ps.records = all.serve.records = server_records_path();
  add_remove(command("rm", "Remove a model from Hugging Face's cache"), all.remove);
  add_predict(command("predict", "Expected tokens per second on a card that need not be here"), all.predict);
  add_bench(command("bench", "Tokens per second, and their share of the machine's limit"), all.bench);
  add_load(command("load", "Requests to a server over HTTP: throughput and latencies, by concurrency"), all.load);
  add_verify(command("verify", "Check kernels, results, behaviour under stress, and speed"), all.verify);
  bool as_page = false, as_json = false;
  add_features(command("features", "Every feature: its flag, its values, where they run"), as_page, as_json);
  command("man", "Print the manual page");
  std::string shell;
  command("completion", "Print a script that completes nibble's flags in a shell")
      .value("shell", shell, "bash, zsh or fish")
      .required();
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  if (arguments.empty()) return Exit{kExitOk, greeting_text()};
  const HelpTopic topic = take_help_topic(arguments);
  respell_foreign_flags(line, arguments);
  if (arguments[0] == "serve") respell_vllm_arguments(arguments);
  const auto [name, wants_help, wants_version] = line.parse(std::move(arguments));
  if (wants_version) return Exit{kExitOk, version_text() + "\n"};
  if (wants_help) return Exit{kExitOk, help_text(line.facts(), name, topic)};
  if (name == "features") return Exit{kExitOk, features_told(as_page, as_json)};
  if (name == "man") return Exit{kExitOk, man_page_text(line.facts())};
  if (name == "completion") return Exit{kExitOk, completion_text(line.facts(), shell)};
  set_hub(all, hub_settings(environment));
  resolve_settings_of(line, name, all);
  if (name == "run") return Command(std::move(all.run));
  if (name == "chat") return Command(std::move(all.chat));
  if (name == "serve") return Command(std::move(all.serve));
  if (name == "inspect") return Command(std::move(all.inspect));
  if (name == "tokenize") return Command(std::move(all.tokenize));
  if (name == "perplexity") return Command(std::move(all.perplexity));
  if (name == "compare") return Command(std::move(all.compare));
  if (name == "bench") {
    if (all.bench.output.json) all.bench.format = BenchFormat::kJson;
    all.bench.command = typed_command(argc, argv);
    all.bench.environment = telling_variables();
    return Command(std::move(all.bench));
  }
  if (name == "load") {
    all.load.command = typed_command(argc, argv);
    all.load.environment = telling_variables();
    return Command(std::move(all.load));
  }
  if (name == "verify") {
    all.verify.command = typed_command(argc, argv);
    all.verify.environment = telling_variables();
    return Command(std::move(all.verify));
  }
  if (name == "predict") return Command(std::move(all.predict));
  if (name == "pull") return Command(std::move(all.pull));
  if (name == "list") return Command(std::move(all.list));
  if (name == "ps") return Command(std::move(all.ps));
  if (name == "rm") return Command(std::move(all.remove));
  if (name == "synth") return Command(std::move(all.synth));
  if (name == "convert") return Command(std::move(all.convert));
  return Command(std::move(all.quantize));
}

backend::CpuIsa cpu_mask() {
  const auto name = environment("NIBBLE_CPU_MASK");
  if (!name || name->empty()) return backend::CpuIsa::kAuto;
  try {
    return backend::isa_named(*name);
  } catch (const Error& e) {
    throw Error(e.code(), "NIBBLE_CPU_MASK: {}", e.what());
  }
}

std::optional<backend::cuda::CardArch> card_mask() {
  const auto name = environment("NIBBLE_CUDA_ARCH");
  if (!name || name->empty()) return std::nullopt;
  try {
    return backend::cuda::card_arch(*name);
  } catch (const Error& e) {
    throw Error(e.code(), "NIBBLE_CUDA_ARCH: {}", e.what());
  }
}

}  // namespace nibble::app
