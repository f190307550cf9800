#include "app/options.h"

#include "app/help.h"
#include "app/model_options.h"
#include "app/option_parts.h"
#include "app/parse_error.h"
#include "app/serve_options.h"
#include "app/vllm_flags.h"
#include "base/error.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <random>
#include <utility>

namespace nibble::app {
namespace {

std::optional<std::string> environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

void add_output(CLI::App& app, OutputOptions& o) {
  app.add_flag("--json", o.json, "Print one JSON object instead of text");
  o.dumb_terminal = environment("TERM") == "dumb";
  if (!environment("NO_COLOR").value_or("").empty()) o.color = ColorMode::kNever;  // https://no-color.org
  app.add_flag("-q,--quiet", o.quiet, "No progress and no summary");
  add_choice<ColorMode>(
      app, "--color",
      {o.color, {{"auto", ColorMode::kAuto}, {"always", ColorMode::kAlways}, {"never", ColorMode::kNever}}},
      "Colours; auto: on a terminal, unless NO_COLOR is set");
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
  throw CLI::ValidationError("--logit-bias", "want ID:BIAS such as 200002:-100, found " + text);
}

void add_generate(CLI::App& app, GenerateOptions& o) {
  backend::SamplingParams& s = o.sampling;
  s.seed = std::random_device{}();
  app.option_defaults()->always_capture_default();
  app.add_option("-n,--max-tokens", o.max_tokens,
                 "Most tokens to generate; 0: until the model stops or the context is full")
      ->transform(whole(0, 1 << 24));
  app.add_option("--temperature", s.temperature, "0: greedy; at most 100")->check(finite);
  app.add_option("--top-k", s.top_k, "Draw from the k most likely tokens; 0: all")->transform(whole(0, INT32_MAX));
  app.add_option("--top-p", s.top_p, "Draw from the most likely tokens that make up this share")->check(finite);
  app.add_option("--min-p", s.min_p, "Drop tokens less likely than this share of the likeliest")->check(finite);
  app.add_option("--repetition-penalty", s.repetition_penalty, "Divide the logits of tokens seen; 1: off")
      ->check(finite);
  app.add_option("--presence-penalty", s.presence_penalty, "Subtract from the logits of tokens generated before")
      ->check(finite);
  app.add_option("--frequency-penalty", s.frequency_penalty, "Subtract per time a token was generated before")
      ->check(finite);
  app.option_defaults()->always_capture_default(false);
  app.add_option_function<std::vector<std::string>>(
         "--logit-bias",
         [&s](const std::vector<std::string>& values) {
           for (const std::string& value : values) s.logit_bias.push_back(parse_bias(value));
         },
         "ID:BIAS, repeatable")
      ->allow_extra_args(false);
  add_seed(app, "--seed", s.seed, "Same seed, same text; default: random, shown in the summary");
  app.add_option("--stop", o.stop, "Stop before this text; repeatable")->allow_extra_args(false)->check(not_empty);
  app.add_flag("--ignore-eos", o.ignore_eos, "Do not stop at the model's end tokens");
}

void add_text(CLI::App& app, TextInput& input, const std::string& what) {
  auto* text = app.add_option("-p,--prompt", input.text, what);
  auto* file = app.add_option("-f,--file", input.file, "The same from a file; - is standard input")->check(not_empty);
  text->excludes(file);
  app.parse_complete_callback([&input, text, file] { input.given = text->count() + file->count() > 0; });
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

void add_date(CLI::App& app, std::string& into) {
  app.add_option("--date", into, "Current date told to the model, YYYY-MM-DD; default: today")
      ->check([](const std::string& text) {
        return is_date(text) ? std::string() : "want a day as YYYY-MM-DD, found " + text;
      });
}

// Each command's options, filled while parsing.
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
};

void add_run(CLI::App& app, RunOptions& o) {
  add_text(app, o.prompt, "Text to continue");
  add_model_source(app, o.model);
  add_generate(app, o.generate);
  app.add_flag("--special", o.special, "Recognise special tokens such as <|start|> in the prompt");
  add_backend(app, o.model);
  add_runtime(app, o.model);
  add_limits(app, o.model, {"4096 or what -n needs", ""});
  add_output(app, o.output);
}

void add_chat(CLI::App& app, ChatOptions& o) {
  add_text(app, o.prompt, "Ask one question and leave");
  add_model_source(app, o.model);
  app.add_option("--instructions", o.instructions, "Instructions to the model (Harmony's developer message)");
  app.add_option("--tools", o.tools, "JSON file with functions the model may call, as in OpenAI's \"tools\"")
      ->check(not_empty);
  add_choice<text::ReasoningEffort>(app, "--reasoning",
                                    {o.effort,
                                     {{"low", text::ReasoningEffort::kLow},
                                      {"medium", text::ReasoningEffort::kMedium},
                                      {"high", text::ReasoningEffort::kHigh}}},
                                    "Effort told to the model");
  o.date = today();
  add_date(app, o.date);
  add_generate(app, o.generate);
  add_backend(app, o.model);
  add_runtime(app, o.model);
  add_limits(app, o.model, {"8192", ""});
  add_output(app, o.output);
}

void add_serve(CLI::App& app, ServeOptions& o) {
  add_serve_flags(app, o);
  add_backend(app, o.model);
  add_runtime(app, o.model);
  add_limits(app, o.model, {"the model's", "auto"});
  add_load_format(app, o.model.load_format);
  add_date(app, o.date);
  add_output(app, o.output);
  add_vllm_flags(app, o);
}

std::vector<std::string> arguments_of(int argc, const char* const* argv) {
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  if (!arguments.empty() && arguments[0] == "serve") respell_vllm_arguments(arguments);
  std::reverse(arguments.begin(), arguments.end());  // as the library wants them
  return arguments;
}

void add_inspect(CLI::App& app, InspectOptions& o) {
  add_model_source(app, o.model);
  app.add_flag("--tensors", o.tensors, "List every tensor");
  app.add_option("--context", o.contexts, "Context lengths to compute memory for; repeatable")
      ->transform(whole(1, 1 << 24));
  auto* plan =
      app.add_flag("--plan", o.plan, "What would run for a step, stage by stage: kernels, tiles, bytes, flops");
  const size_t before = app.get_options().size();
  add_list(app, "-b,--batch", {o.batches, 0, 1024}, "With --plan: steps of so many sequences that generate; 0: none");
  add_list(app, "-p,--n-prompt", {o.prompts, 0, 65536}, "With --plan: steps of so many prompt tokens; 0: none");
  add_list(app, "-d,--n-depth", {o.depths, 0, 1 << 24}, "With --plan: tokens in the context before");
  add_choice<CardChoice>(app, "--card",
                         {o.card,
                          {{"auto", CardChoice::kAuto},
                           {"h100", CardChoice::kH100},
                           {"h200", CardChoice::kH200},
                           {"gb10", CardChoice::kGb10}}},
                         "With --plan --backend cuda: the card; auto: this machine's, else h200");
  add_backend(app, o.model);
  add_kernels(app, o.model);
  const std::vector<CLI::Option*> all = app.get_options();
  for (size_t i = before; i < all.size(); ++i) all[i]->needs(plan);
  add_output(app, o.output);
}

void add_tokenize(CLI::App& app, TokenizeOptions& o) {
  add_text(app, o.input, "Text to tokenise (default: standard input)");
  app.add_option("-m,--model,--tokenizer", o.tokenizer,
                 "Model directory, .gguf, tokenizer.json or tiktoken rank file; default: o200k_harmony")
      ->check(not_empty);
  app.add_flag("--special", o.special, "Recognise special tokens in the text");
  app.add_flag("--decode", o.decode, "The input is token ids: print their text");
  app.add_flag("--count", o.count, "Print only how many tokens there are");
  add_output(app, o.output);
}

void add_perplexity(CLI::App& app, PerplexityOptions& o) {
  add_text(app, o.input, "Text to score");
  add_model_source(app, o.model);
  app.add_option("--context", o.context, "Tokens per window; each token is scored from those before it in its window")
      ->transform(whole(2, 1 << 20))
      ->capture_default_str();
  add_backend(app, o.model);
  add_runtime(app, o.model);
  add_limits(app, o.model, {"--context", ""});
  add_output(app, o.output);
}

void add_compare(CLI::App& app, CompareOptions& o) {
  add_text(app, o.prompt, "Text of the step (default: a built-in sentence)");
  add_model_source(app, o.model);
  add_choice(app, "--a", backends(o.a), "One backend");
  add_choice(app, "--b", backends(o.b), "The other backend");
  app.add_option("--tolerance", o.tolerance, "Largest difference, relative to the stage's root mean square")
      ->check(finite)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add_runtime(app, o.model);
  add_output(app, o.output);
}

void add_part_bytes(CLI::App& app, int64_t& into) {
  app.add_option("--part-bytes", into, "Split a GGUF file into parts of so many bytes of tensors; 0: one file")
      ->transform(whole(0, int64_t{1} << 50));
}

void add_synth(CLI::App& app, SynthOptions& o) {
  app.add_option("--preset", o.preset, "gpt-oss-20b, gpt-oss-120b or tiny")->required();
  app.add_option("--layers", o.layers, "Only so many layers")->transform(whole(1, 1000));
  add_seed(app, "--seed", o.seed, "Seed of the random weights");
  add_choice<CheckpointFormat>(app, "--format",
                               {o.format,
                                {{"auto", CheckpointFormat::kAuto},
                                 {"safetensors", CheckpointFormat::kSafetensors},
                                 {"gguf", CheckpointFormat::kGguf}}},
                               "auto: gguf where the output's name ends in .gguf");
  add_part_bytes(app, o.part_bytes);
  app.add_option("-o,--output", o.destination, "Directory to write, absent or empty; or a .gguf file")->required();
  add_output(app, o.output);
}

void add_convert(CLI::App& app, ConvertOptions& o) {
  add_model_source(app, o.model);
  add_seed(app, "--dummy-seed", o.model.dummy_seed, "Seed of the dummy weights");
  using checkpoint::GgmlType;
  add_choice<GgmlType>(
      app, "--dense",
      {o.dense, {{"q8_0", GgmlType::kQ8}, {"bf16", GgmlType::kBf16}, {"f16", GgmlType::kF16}, {"f32", GgmlType::kF32}}},
      "Type of attention and embedding matrices; q8_0 and f16 round");
  add_part_bytes(app, o.part_bytes);
  app.add_option("-o,--output", o.destination, "GGUF file to write")->required();
  add_output(app, o.output);
}

void add_quantize(CLI::App& app, QuantizeOptions& o) {
  app.add_option("input", o.input, "A safetensors file, or a model directory whose experts are bf16")->required();
  app.add_option("-o,--output", o.destination, "File or directory to write")->required();
  add_choice<std::string>(app, "--format",
                          {o.format,
                           {{"mxfp4", "mxfp4"},
                            {"mxfp8_e4m3", "mxfp8_e4m3"},
                            {"mxfp8_e5m2", "mxfp8_e5m2"},
                            {"mxfp6_e2m3", "mxfp6_e2m3"},
                            {"mxfp6_e3m2", "mxfp6_e3m2"}}},
                          "Element format; a model's experts: mxfp4");
  add_choice<MxScaleRule>(
      app, "--scale",
      {o.scale, {{"ocp", MxScaleRule::kOcpFloor}, {"ceil", MxScaleRule::kCeil}, {"round", MxScaleRule::kRoundLlama}}},
      "Block scale: ocp (MX v1.0), ceil (never clips) or round (llama.cpp)");
  app.add_option("--tensors", o.tensors, "Quantise only tensors whose name matches, * and ? allowed (files only)")
      ->check(not_empty);
  add_output(app, o.output);
}

void add_bench(CLI::App& app, BenchOptions& o) {
  constexpr int64_t kMostTokens = 1 << 24, kMostSequences = 1024;
  add_model_source(app, o.model);
  add_list(app, "-p,--n-prompt", {o.prompts, 0, kMostTokens}, "Prompts to process, in tokens; 0: none");
  add_list(app, "-n,--n-gen", {o.generates, 0, kMostTokens}, "Tokens to generate; 0: none");
  add_list(app, "-d,--n-depth", {o.depths, 0, kMostTokens}, "Tokens in the context before");
  add_list(app, "-b,--batch", {o.batches, 1, kMostSequences}, "Sequences that generate together");
  app.add_option("-r,--repetitions", o.repetitions, "Times each test is measured")
      ->transform(whole(1, 1000))
      ->default_str(fmt::format("{}", o.repetitions));
  auto* output = app.add_option_function<std::string>(
      "-o,--output",
      [&o](const std::string& found) {
        if (found != "md" && found != "csv" && found != "json")
          throw CLI::ValidationError("--output", "want md or csv or json, found " + found);
        o.format = found == "md" ? BenchFormat::kMarkdown : found == "csv" ? BenchFormat::kCsv : BenchFormat::kJson;
      },
      "The table's format");
  output->type_name("md|csv|json")->default_str("md");
  app.add_flag("--profile", o.profile, "And where the time goes, by stage, on a GPU by kernel, in one repetition more");
  app.add_flag("--tune", o.tune,
               "Instead: from how many tokens on which kernels are faster on this card, over 4 dummy layers of the "
               "model's shapes, as a line of src/backend/cuda/tuned.h");
  add_backend(app, o.model);
  o.model.max_num_batched_tokens = 8192;
  add_runtime(app, o.model);
  add_limits(app, o.model, {"the model's", ""});
  add_output(app, o.output);
  app.get_option("--json")->excludes(output);
}

}  // namespace

std::variant<Command, Exit> parse_command_line(int argc, const char* const* argv) {
  CLI::App app("Nibble: the fastest gpt-oss on the machine you own.", "nibble");
  app.set_version_flag("--version", std::string("nibble ") + NIBBLE_VERSION);
  app.footer(help_footer(""));
  app.require_subcommand(1);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);  // given twice: the last counts
  All all;
  add_run(*app.add_subcommand("run", "Continue a text, streamed"), all.run);
  add_chat(*app.add_subcommand("chat", "Talk to the model (Harmony), reasoning dimmed"), all.chat);
  add_serve(*app.add_subcommand("serve", "Answer OpenAI's API over HTTP, for many clients at once"), all.serve);
  add_inspect(*app.add_subcommand("inspect", "What a model holds and needs: tensors, bytes, memory per context"),
              all.inspect);
  add_tokenize(*app.add_subcommand("tokenize", "Text to token ids and back"), all.tokenize);
  add_quantize(*app.add_subcommand("quantize", "Quantise tensors to an MX format"), all.quantize);
  add_synth(*app.add_subcommand("synth", "Write a checkpoint of true shapes with random weights"), all.synth);
  add_convert(*app.add_subcommand("convert", "Write a model as llama.cpp's GGUF file"), all.convert);
  add_perplexity(*app.add_subcommand("perplexity", "How well the model predicts a text"), all.perplexity);
  add_compare(*app.add_subcommand("compare", "Run one step on two backends and name the first difference"),
              all.compare);
  add_bench(*app.add_subcommand("bench", "Tokens per second, and how much of the machine's limit that is"), all.bench);
  for (CLI::App* command : app.get_subcommands({})) command->footer(help_footer(command->get_name()));
  try {
    app.parse(arguments_of(argc, argv));
    if (app.got_subcommand("serve")) resolve_serve_settings(*app.get_subcommand("serve"), all.serve, environment);
  } catch (const CLI::CallForHelp&) {
    return Exit{kExitOk, app.help()};
  } catch (const CLI::CallForVersion& e) {
    return Exit{kExitOk, std::string(e.what()) + "\n"};
  } catch (const CLI::ParseError& e) {
    throw Error(Code::kInvalidRequest, "{}", parse_error_text(app, e));
  }
  if (app.got_subcommand("run")) return Command(std::move(all.run));
  if (app.got_subcommand("chat")) return Command(std::move(all.chat));
  if (app.got_subcommand("serve")) return Command(std::move(all.serve));
  if (app.got_subcommand("inspect")) return Command(std::move(all.inspect));
  if (app.got_subcommand("tokenize")) return Command(std::move(all.tokenize));
  if (app.got_subcommand("perplexity")) return Command(std::move(all.perplexity));
  if (app.got_subcommand("compare")) return Command(std::move(all.compare));
  if (app.got_subcommand("bench")) {
    if (all.bench.output.json) all.bench.format = BenchFormat::kJson;
    all.bench.command = fmt::format("nibble {}", fmt::join(argv + 1, argv + argc, " "));
    return Command(std::move(all.bench));
  }
  if (app.got_subcommand("synth")) return Command(std::move(all.synth));
  if (app.got_subcommand("convert")) return Command(std::move(all.convert));
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

}  // namespace nibble::app
