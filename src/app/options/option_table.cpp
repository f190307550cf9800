// The options that one command has, or two, and the whole table.

#include "app/options/features.h"
#include "app/options/option_rows.h"
#include "backend/cuda/card/cards.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

namespace nibble::app {
namespace {

using enum CommandId;
using enum HelpGroup;
using enum Effect;
using enum Runs;
using backend::cuda::KnownCard;

constexpr int64_t kMostTokens = 1 << 24, kMostSequences = 1024, kMostBytes = int64_t{1} << 50;

constexpr Word kEfforts[] = {word("low", text::ReasoningEffort::kLow), word("medium", text::ReasoningEffort::kMedium),
                             word("high", text::ReasoningEffort::kHigh)};
constexpr Word kOnByDefault[] = {{"true", 1}, {"false", 0}};
constexpr Word kPolicies[] = {{"fcfs", 0}, {"priority", 1}};
constexpr Word kReplicas[] = {{"1", 1}, {"2", 2, kUnrounded, kOnHopper}};
constexpr Word kEventFormats[] = {{"arrays", 0}, {"maps", 1}};
constexpr Word kLogFormats[] = {word("auto", LogFormat::kAuto), word("text", LogFormat::kText),
                                word("json", LogFormat::kJson)};
constexpr Word kUnknownFields[] = {{"ignore", 1}, {"refuse", 0}};
constexpr Word kImages[] = {{"placeholder", 1}, {"refuse", 0}};
constexpr Word kModelNames[] = {word("claude", AnyModelName::kClaude), word("all", AnyModelName::kAll),
                                word("none", AnyModelName::kNone)};
constexpr Word kTwoBackends[] = {word(BackendKind::kCpu), word(BackendKind::kCuda), word(BackendKind::kReference)};
constexpr Word kCheckpoints[] = {word("auto", CheckpointFormat::kAuto),
                                 word("safetensors", CheckpointFormat::kSafetensors),
                                 word("gguf", CheckpointFormat::kGguf)};
constexpr Word kDenseTypes[] = {word("q8_0", DType::kGgmlQ8), word("bf16", DType::kBf16), word("f16", DType::kF16),
                                word("f32", DType::kF32)};
constexpr Word kElements[] = {{"mxfp4"}, {"mxfp8_e4m3"}, {"mxfp8_e5m2"}, {"mxfp6_e2m3"}, {"mxfp6_e3m2"}};
constexpr Word kScales[] = {word("ocp", MxScaleRule::kOcpFloor), word("ceil", MxScaleRule::kCeil),
                            word("round", MxScaleRule::kRoundLlama)};
constexpr Word kTables[] = {word("md", BenchFormat::kMarkdown), word("json", BenchFormat::kJson)};
constexpr Word kApis[] = {word(client::Api::kCompletions), word(client::Api::kChat)};
constexpr Word kForms[] = {word(client::PromptForm::kIds), word(client::PromptForm::kText)};
constexpr Word kToolChoices[] = {{"required", 1}, {"auto", 0}};
constexpr Word kLevels[] = {word("1", VerifyLevel::kSmoke),       word("1.5", VerifyLevel::kPaths),
                            word("2", VerifyLevel::kCorrectness), word("3", VerifyLevel::kStress),
                            word("4", VerifyLevel::kPerformance), word("5", VerifyLevel::kRegression),
                            word("6", VerifyLevel::kFeatures)};

std::string wrong_date(const std::string& found) {
  using namespace std::chrono;
  const std::vector<std::string> parts = split(found, '-');
  const bool has_form = parts.size() == 3 && parts[0].size() == 4 && parts[1].size() == 2 && parts[2].size() == 2;
  const auto part = [&](size_t at) { return number_in<unsigned>(parts[at]).value_or(0); };
  const bool is_date = has_form && number_in<unsigned>(parts[0]) &&
                       year_month_day(year(static_cast<int>(part(0))), month(part(1)), day(part(2))).ok();
  return is_date ? "" : "want a day as YYYY-MM-DD, found " + found;
}

std::string wrong_origin(const std::string& found) {
  return found.starts_with("[") ? "want one origin, found the list " + found : "";
}

// A header's value that every client sends alike; browsers send other letters in Latin-1, curl as it finds them.
std::string wrong_key(const std::string& found) {
  const bool plain = std::ranges::all_of(found, [](char c) { return c >= ' ' && c <= '~'; });
  return plain ? "" : "want letters, digits and signs of ASCII, which every client can send, found others";
}

constexpr Range kKey{.filled = true, .wrong = wrong_key};

std::string wrong_report(const std::string& found) {
  return found.ends_with(".md") ? "" : "want a name that ends in .md (bench/page.py makes HTML of it), found " + found;
}

constexpr Range checked(std::string (*wrong)(const std::string&)) { return {.wrong = wrong}; }

std::vector<std::string> card_words(bool may_be_open) {
  std::vector<std::string> names;
  if (may_be_open) names.emplace_back("auto");
  for (const KnownCard& card : backend::cuda::known_cards()) names.push_back(card.word);
  return names;
}
std::string known_card_words(CommandId command) {
  return fmt::format("{}", fmt::join(card_words(command == kInspect), ", "));
}
std::string known_link_words(CommandId /*command*/) {
  std::vector<std::string> names;
  for (const backend::cuda::KnownLink& link : backend::cuda::known_links()) names.push_back(link.word);
  return fmt::format("{}", fmt::join(names, ", "));
}
template <bool kMayBeOpen>
void read_card(std::string_view flag, const std::string& found, const ValueRef& into) {
  const std::vector<std::string> names = card_words(kMayBeOpen);
  if (std::ranges::find(names, found) == names.end())
    refuse_value(flag, fmt::format("want {}, found {}", fmt::join(names, " or "), found));
  *std::get<std::string*>(into) = kMayBeOpen && found == names.front() ? "" : found;
}
std::string shown_card(const ValueRef& value) {
  const std::string& card = *std::get<std::string*>(value);
  return card.empty() ? "auto" : card;
}

void read_acceptances(std::string_view flag, const std::string& found, const ValueRef& into) {
  constexpr int kMost = 1 + engine::kMostDrafted;
  std::vector<double>& values = *std::get<std::vector<double>*>(into);
  values.clear();
  for (const std::string& word : split(found, ',')) {
    const std::optional<double> value = number_in<double>(word);
    if (!value || !(*value >= 0 && *value <= kMost))
      refuse_value(flag, fmt::format("want numbers from 0 to {} such as 0,0.7 or 0,1.5,2,2.5, found {}", kMost, found));
    values.push_back(*value);
  }
}
std::string shown_acceptances(const ValueRef& value) {
  return fmt::format("{}", fmt::join(*std::get<std::vector<double>*>(value), ","));
}

void read_levels(std::string_view flag, const std::string& found, const ValueRef& into) {
  std::vector<VerifyLevel>& levels = *std::get<std::vector<VerifyLevel>*>(into);
  levels.clear();
  for (const std::string& name : split(found, ',')) {
    const size_t before = levels.size();
    for (const Word& level : kLevels)
      if (name == "all" || name == level.word) levels.push_back(static_cast<VerifyLevel>(level.value));
    if (levels.size() == before)
      refuse_value(flag, fmt::format("want 1, 1.5, 2, 3, 4, 5 or 6, several with commas, or all; found {}", name));
  }
  std::ranges::sort(levels);
  levels.erase(std::ranges::unique(levels).begin(), levels.end());
}
std::string shown_levels(const ValueRef& value) {
  std::string text;
  for (const VerifyLevel level : *std::get<std::vector<VerifyLevel>*>(value))
    text += fmt::format("{}{}", text.empty() ? "" : ",", name_of(level));
  return text;
}

const Preset& known_preset(std::string_view flag, const std::string& name) {
  if (const Preset* const preset = preset_named(name)) return *preset;
  std::vector<std::string_view> names;
  for (const Preset& preset : presets()) names.push_back(preset.name);
  refuse_value(flag, fmt::format("want one of {}, found {}", fmt::join(names, ", "), name));
}
// Flags of a preset count where nobody gives them.
void read_preset(std::string_view flag, const std::string& found, const ValueRef& into) {
  for (const FeatureWord& word : feature_words(known_preset(flag, found).words))
    std::get<Settings*>(into)->implied.push_back({word.flag, word.value, "preset " + found});
}
void read_presets(std::string_view flag, const std::string& found, const ValueRef& into) {
  std::vector<std::string>& names = *std::get<std::vector<std::string>*>(into);
  names.clear();
  for (const std::string& name : split(found, ',')) names.emplace_back(known_preset(flag, name).name);
}

constexpr Option kChatRows[] = {
    Option("--instructions", "Instructions to the model (Harmony's developer message)",
           kPlace<&ChatOptions::instructions>, kText, {kChat}, kCommon, {.foreign = "-sys --system-prompt --system"}),
    Option("--tools", "JSON file with functions the model may call, as in OpenAI's \"tools\"",
           kPlace<&ChatOptions::tools>, kFilled, {kChat}),
    Option("--reasoning", "Effort told to the model", kPlace<&ChatOptions::effort>, words(kEfforts), {kChat}, kCommon,
           {.foreign = "--reasoning-effort --think"}),
    Option("--show-reasoning", "Show the reasoning as it arrives", kPlace<&ChatOptions::show_reasoning>, kSwitch,
           {kChat}),
    Option("!--no-history", "Do not keep what is typed in a file, nor read it", kPlace<&ChatOptions::keeps_history>,
           kSwitch, {kChat}, kExpert),
    Option("--date", "Current date told to the model, YYYY-MM-DD; default: today",
           kPlace<&ChatOptions::date, &ServeOptions::date>, checked(wrong_date), {kChat, kServe}, kExpert,
           {.foreign = "VLLM_SYSTEM_START_DATE"})};
static_assert(has_rows<ChatOptions, &ChatOptions::model, &ChatOptions::generate, &ChatOptions::output,
                       &ChatOptions::prompt, &ChatOptions::history>(kChatRows));

constexpr Option kServeRows[] = {
    Option("--served-model-name", "Names that requests may use; default: the model's",
           kPlace<&ServeOptions::served_names>, several(kFilled), {kServe}, kCommon, {.foreign = "-a --alias"}),
    Option("--host", "Address to listen on; 0.0.0.0: all", kPlace<&ServeOptions::host>, kFilled, {kServe}),
    Option("--port", "Port to listen on; 0: any free one", kPlace<&ServeOptions::port>, whole(0, 65535), {kServe}),
    Option("--max-num-seqs", "Most sequences computed at the same time", kPlace<&ServeOptions::max_num_seqs>,
           sized(1, 1024), {kServe}, kCommon, {.foreign = "-np --parallel"}),
    Option("--reasoning", "Effort told to the model, where a request does not say", kPlace<&ServeOptions::effort>,
           words(kEfforts), {kServe}, kSampling, {.foreign = "--reasoning-effort --think"}),
    Option("--preset", "Flags that belong together: B1, C1, C2, C3 or C4 (docs/feature-matrix.md)",
           kPlace<&ModelOptions::settings>, own(read_preset), {kServe}, kPerformance, {.type = "NAME"}),
    Option("--max-waiting", "Most requests in the queue, besides the running ones; further ones get a 429",
           kPlace<&ServeOptions::max_waiting>, whole(1, 1 << 20), {kServe}, kPerformance),
    Option("--kv-tokens",
           "Tokens that the KV cache holds, of all sequences; 0: one context's, and up to 131,072, with --backend cuda "
           "524,288, where they fit and the sequences can use them",
           kPlace<&ServeOptions::kv_tokens>, sized(0, 1 << 30), {kServe}, kPerformance),
    Option(
        "--kv-cache-memory-bytes,--kv-cache-memory",
        "Bytes of the KV cache of each engine or card, instead of --kv-tokens (2G and the like); 0: --kv-tokens says",
        kPlace<&ServeOptions::kv_memory_bytes>, sized(0, kMostBytes), {kServe}, kPerformance),
    Option("--max-num-partial-prefills", "Most prompts that are read in parts at the same time",
           kPlace<&ServeOptions::max_num_partial_prefills>, whole(1, 1024), {kServe}, kPerformance),
    Option("--max-long-partial-prefills", "Most long ones among them; 0: no limit of their own",
           kPlace<&ServeOptions::max_long_partial_prefills>, whole(0, 1024), {kServe}, kPerformance),
    Option("--long-prefill-token-threshold",
           "A prompt with more tokens to read is long, and gets at most so many in a step; 0: none is, or with "
           "--max-long-partial-prefills 4 % of the context",
           kPlace<&ServeOptions::long_prefill_token_threshold>, whole(0, 1 << 24), {kServe}, kPerformance),
    Option(
        "--target-itl",
        "Milliseconds between a stream's tokens that are aimed at while prompts are read; 0: from measured times, so that "
        "streams keep 27 % of their speed",
        kPlace<&ServeOptions::target_itl>, real(0, 60000), {kServe}, kPerformance),
    Option("--scheduling-policy", "priority: requests with a lower number in their field priority go first",
           kPlace<&ServeOptions::by_priority>, words(kPolicies), {kServe}, kPerformance,
           {.feature = {"policy", "", "serve"}}),
    Option("--enable-prefix-caching,!--no-enable-prefix-caching",
           "Do not compute again what a prompt shares with earlier ones (default)", kPlace<&ServeOptions::prefix_cache>,
           such_as(kSwitch, kOnByDefault), {kServe}, kPerformance, {.feature = {"prefix-cache", "", "serve"}}),
    Option("--data-parallel-size",
           "cpu, reference: engines of the same model behind this port, which divide the threads; --max-num-seqs and "
           "--kv-tokens are each one's. A request goes where its prompt is cached, or where less waits",
           kPlace<&ServeOptions::replicas>, such_as(whole(1, 64), kReplicas), {kServe}, kPerformance,
           {.foreign = "-dp", .feature = {"dp", "", "serve; on cards, as many cards each as it has ranks"}}),
    Option("--async-scheduling,!--no-async-scheduling",
           "Begin a step before the last one's tokens are read; default: on cuda",
           kPlace<&ServeOptions::async_scheduling>, such_as(kSwitch, kOnByDefault), {kServe}, kPerformance,
           {.feature = {"async", "on cuda", "serve", "On a CPU it only costs"}}),
    Option("--api-key", "Key that clients must give; repeatable", kPlace<&ServeOptions::api_keys>, repeated(kKey),
           {kServe}, kCommon, {.foreign = "VLLM_API_KEY", .secret = true}),
    Option("--ssl-certfile", "Certificate chain (PEM): serve HTTPS", kPlace<&ServeOptions::certificate_file>, kFilled,
           {kServe}, kCommon, {.foreign = "--ssl-cert-file"}),
    Option("--ssl-keyfile", "Its private key (PEM)", kPlace<&ServeOptions::key_file>, kFilled, {kServe}, kCommon,
           {.foreign = "--ssl-key-file"}),
    Option("--allowed-origin,--allowed-origins", "Origin of web pages that may call; * any, empty none",
           kPlace<&ServeOptions::allowed_origin>, checked(wrong_origin), {kServe}, kExpert),
    Option("--kv-events,!--no-kv-events",
           "Publish over ZeroMQ what the prefix cache keeps, for routers that send a request where its prefix is "
           "(docs/serving.md)",
           kPlace<&KvEventOptions::on>, kSwitch, {kServe}, kExpert),
    Option("--kv-events-endpoint", "Where; of replica n the port is n higher", kPlace<&KvEventOptions::endpoint>,
           kFilled, {kServe}, kExpert, {.foreign = "--kv-events-config.endpoint"}),
    Option("--kv-events-replay-endpoint", "Where past batches can be asked for again; default: nowhere",
           kPlace<&KvEventOptions::replay_endpoint>, kText, {kServe}, kExpert,
           {.foreign = "--kv-events-config.replay_endpoint"}),
    Option("--kv-events-topic", "Topic of the messages; llm-d wants kv@POD@MODEL", kPlace<&KvEventOptions::topic>,
           kText, {kServe}, kExpert, {.foreign = "--kv-events-config.topic"}),
    Option("--kv-events-format",
           "How an event is written: as vLLM up to mid-2026 does, which llm-d reads, or as it does since",
           kPlace<&KvEventOptions::maps>, words(kEventFormats), {kServe}, kExpert),
    Option("--kv-events-buffer", "Past batches that are kept", kPlace<&KvEventOptions::kept_batches>, whole(1, 1 << 20),
           {kServe}, kExpert, {.foreign = "--kv-events-config.buffer_steps"}),
    Option("--kv-events-hwm", "Most batches that wait for a slow subscriber", kPlace<&KvEventOptions::most_unsent>,
           whole(1, 1 << 20), {kServe}, kExpert, {.foreign = "--kv-events-config.hwm"}),
    Option("--enable-force-include-usage",
           "Every stream of chats and completions ends with its usage, asked for or not",
           kPlace<&ServeOptions::include_usage>, kSwitch, {kServe}, kExpert),
    Option("--any-model-name", "Names of other models that are answered all the same: claude-*, all or none",
           kPlace<&ServeOptions::any_model_name>, words(kModelNames), {kServe}, kExpert),
    Option("--unknown-fields",
           "Fields of a request that nothing here knows; ignored ones are named in the answer's head",
           kPlace<&ServeOptions::unknown_fields>, words(kUnknownFields), {kServe}, kExpert),
    Option("--images", "Pictures in a conversation: a text stands in their place, or the request is refused",
           kPlace<&ServeOptions::images>, words(kImages), {kServe}, kExpert),
    Option("--headless", "With a --node-rank above 0, which serves no port: refuse to serve one",
           kPlace<&ServeOptions::headless>, kSwitch, {kServe}, kExpert),
    Option("--http-threads", "Threads for HTTP", kPlace<&ServeOptions::http_threads>, whole(1, 64), {kServe}, kExpert),
    Option("--max-connections", "Most open connections", kPlace<&ServeOptions::max_connections>, whole(1, 1 << 20),
           {kServe}, kExpert),
    Option("--max-body-bytes", "Largest request body", kPlace<&ServeOptions::max_body_bytes>, whole(1 << 10, 1 << 30),
           {kServe}, kExpert),
    Option("--max-header-bytes,--h11-max-incomplete-event-size", "Largest request header",
           kPlace<&ServeOptions::max_header_bytes>, whole(1 << 10, 1 << 20), {kServe}, kExpert),
    Option("--request-timeout", "Seconds for a request's body to arrive", kPlace<&ServeOptions::request_timeout>,
           whole(1, 3600), {kServe}, kExpert),
    Option("--shutdown-timeout", "Seconds that running requests get after SIGTERM",
           kPlace<&ServeOptions::shutdown_timeout>, whole(0, 86400), {kServe}, kExpert),
    Option("--log-requests,--enable-log-requests,!--no-log-requests,!--disable-log-requests,!--no-enable-log-requests",
           "One line per request on standard error (default)", kPlace<&ServeOptions::log_requests>, kSwitch, {kServe},
           kExpert),
    Option("--log-prompts", "Log the text of requests too", kPlace<&ServeOptions::log_prompts>, kSwitch, {kServe},
           kExpert),
    Option("--log-format", "Lines on standard error; auto: text on a terminal, elsewhere one JSON object a line",
           kPlace<&ServeOptions::log_format>, words(kLogFormats), {kServe}, kExpert),
    Option("--config", "TOML or YAML file (by its name) with settings named like the flags", kPlace<&Settings::file>,
           kFilled, {kServe})};
static_assert(has_rows<ServeOptions, &ServeOptions::model, &ServeOptions::output, &ServeOptions::kv_events,
                       &ServeOptions::sampling, &ServeOptions::records>(kChatRows, kServeRows));
static_assert(has_rows<KvEventOptions>(kServeRows));

constexpr Option kFileRows[] = {
    Option("input", "A safetensors file, or a model (directory or name) whose experts are bf16",
           kPlace<&QuantizeOptions::input>, kText, {kQuantize}, kCommon, {.required = true}),
    Option("-o,--output", "File or directory to write", kPlace<&QuantizeOptions::destination>, kText, {kQuantize},
           kCommon, {.required = true}),
    Option("--format", "Element format; a model's experts: mxfp4", kPlace<&QuantizeOptions::format>, words(kElements),
           {kQuantize}),
    Option("--scale", "Block scale: ocp (MX v1.0), ceil (never clips) or round (llama.cpp)",
           kPlace<&QuantizeOptions::scale>, words(kScales), {kQuantize}),
    Option("--tensors", "Quantise only tensors whose name matches, * and ? allowed (files only)",
           kPlace<&QuantizeOptions::tensors>, kFilled, {kQuantize}),
    Option("--preset", "gpt-oss-20b, gpt-oss-120b, gpt-oss-puzzle-88b or tiny", kPlace<&SynthOptions::preset>, kText,
           {kSynth}, kCommon, {.required = true}),
    Option("--layers", "Only so many layers", kPlace<&SynthOptions::layers>, whole(1, 1000), {kSynth}),
    Option("--seed", "Seed of the random weights", kPlace<&SynthOptions::seed>, kSeeds, {kSynth}, kCommon,
           {.foreign = "-s"}),
    Option("--format", "auto: gguf where the output's name ends in .gguf", kPlace<&SynthOptions::format>,
           words(kCheckpoints), {kSynth}),
    Option("--dummy-seed", "Seed of the dummy weights", kPlace<&ModelOptions::dummy_seed>, kSeeds, {kConvert}),
    Option("--dense", "Type of attention and embedding matrices; q8_0 and f16 round", kPlace<&ConvertOptions::dense>,
           words(kDenseTypes), {kConvert}),
    Option("--part-bytes", "Split a GGUF file into parts of so many bytes of tensors; 0: one file",
           kPlace<&SynthOptions::part_bytes, &ConvertOptions::part_bytes>, whole(0, kMostBytes), {kSynth, kConvert}),
    Option("-o,--output", "Directory to write, absent or empty; or a .gguf file", kPlace<&SynthOptions::destination>,
           kText, {kSynth}, kCommon, {.required = true}),
    Option("-o,--output", "GGUF file to write", kPlace<&ConvertOptions::destination>, kText, {kConvert}, kCommon,
           {.required = true}),
    Option("-m,--model,--tokenizer",
           "A model (directory, .gguf or name), tokenizer.json or tiktoken rank file; default: o200k_harmony",
           kPlace<&TokenizeOptions::tokenizer>, kFilled, {kTokenize}),
    Option("--special", "Recognise special tokens in the text", kPlace<&TokenizeOptions::special>, kSwitch,
           {kTokenize}),
    Option("--decode", "The input is token ids: print their text", kPlace<&TokenizeOptions::decode>, kSwitch,
           {kTokenize}),
    Option("--count", "Print only how many tokens there are", kPlace<&TokenizeOptions::count>, kSwitch, {kTokenize}),
    Option("model",
           "ORG/REPO on the Hub, ORG/REPO:QUANT for one of its GGUF files, an address of its pages, or gpt-oss-20b and "
           "gpt-oss-120b for OpenAI's",
           kPlace<&PullOptions::model>, kFilled, {kPull}, kCommon, {.required = true}),
    Option("--revision", "Branch, tag or commit", kPlace<&PullOptions::revision>, kFilled, {kPull}, kCommon,
           {.shown = true}),
    Option(
        "--include",
        "Only files whose path matches, * and ? allowed; repeatable; default: of several GGUF files the best that fits, "
        "else all but original/ and metal/, which hold the same weights",
        kPlace<&PullOptions::include>, repeated(kFilled), {kPull}),
    Option("model", "ORG/REPO, or ORG/REPO:QUANT for one file, as nibble list shows it", kPlace<&RemoveOptions::model>,
           kFilled, {kRemove}, kCommon, {.required = true}),
    Option("--revision", "Only this revision, and what no other uses; default: all", kPlace<&RemoveOptions::revision>,
           kFilled, {kRemove}),
    Option("-y,--yes", "Without a question", kPlace<&RemoveOptions::yes>, kSwitch, {kRemove}),
    Option("program", "codex, claude, opencode, vibe, aider or llm", kPlace<&LaunchOptions::program>, kFilled,
           {kLaunch}, kCommon, {.required = true}),
    Option("arguments", "What the program gets; its flags stand behind --", kPlace<&LaunchOptions::arguments>,
           repeated(kText), {kLaunch}),
    Option("-m,--model", "What to serve where no server runs; default: the small one that comes with nibble",
           kPlace<&LaunchOptions::model>, kFilled, {kLaunch}),
    Option("--port", "Of the server on this machine", kPlace<&LaunchOptions::port>, whole(1, 65535), {kLaunch}, kCommon,
           {.shown = true}),
    Option("--api-key", "Of that server; default: NIBBLE_API_KEY", kPlace<&LaunchOptions::server_key>, kKey, {kLaunch},
           kCommon, {.secret = true}),
    Option("--print", "Show what would be written and run, and do nothing", kPlace<&LaunchOptions::print>, kSwitch,
           {kLaunch}),
    Option("--markdown", "Print the page docs/feature-matrix.md", kPlace<&FeaturesOptions::markdown>, kSwitch,
           {kFeatures}),
    Option("--json", "Print one JSON object instead of text", kPlace<&FeaturesOptions::json>, kSwitch, {kFeatures},
           kCommon, {.excludes = "--markdown"}),
    Option("shell", "bash, zsh or fish", kPlace<&CompletionOptions::shell>, kText, {kCompletion}, kCommon,
           {.required = true})};
static_assert(has_rows<QuantizeOptions, &QuantizeOptions::output, &QuantizeOptions::hub>(kFileRows));
static_assert(has_rows<SynthOptions, &SynthOptions::output>(kFileRows));
static_assert(has_rows<ConvertOptions, &ConvertOptions::model, &ConvertOptions::output>(kFileRows));
static_assert(
    has_rows<TokenizeOptions, &TokenizeOptions::output, &TokenizeOptions::hub, &TokenizeOptions::input>(kFileRows));
static_assert(has_rows<PullOptions, &PullOptions::output, &PullOptions::hub>(kFileRows));
static_assert(has_rows<RemoveOptions, &RemoveOptions::output, &RemoveOptions::hub>(kFileRows));
static_assert(has_rows<FeaturesOptions>(kFileRows));
static_assert(has_rows<LaunchOptions, &LaunchOptions::profiles>(kFileRows));
static_assert(has_rows<CompletionOptions>(kFileRows));

constexpr Option kPlanRows[] = {
    Option("--tensors", "List every tensor", kPlace<&InspectOptions::tensors>, kSwitch, {kInspect}),
    Option("--context", "Context lengths to compute memory for; repeatable", kPlace<&InspectOptions::contexts>,
           several(whole(1, kMostTokens)), {kInspect}),
    Option("--card",
           "Which contexts a card has memory for; with --plan --backend cuda, the card that runs the steps, auto: this "
           "machine's, else h200: {}",
           kPlace<&InspectOptions::card>, own(read_card<true>, shown_card), {kInspect}, kCommon,
           {.shown = true, .type = "CARD", .fill = known_card_words}),
    Option("--plan", "What would run for a step, stage by stage: kernels, tiles, bytes, flops",
           kPlace<&InspectOptions::plan>, kSwitch, {kInspect}),
    Option("-b,--batch", "With --plan: steps of so many sequences that generate; 0: none",
           kPlace<&InspectOptions::batches>, list(0, kMostSequences), {kInspect}, kCommon, {.needs = "--plan"}),
    Option("-p,--n-prompt", "With --plan: prompts of so many tokens; 0: none", kPlace<&InspectOptions::prompts>,
           list(0, 65536), {kInspect}, kCommon, {.needs = "--plan"}),
    Option("-d,--n-depth", "With --plan: tokens in the context before", kPlace<&InspectOptions::depths>,
           list(0, kMostTokens), {kInspect}, kCommon, {.needs = "--plan"}),
    Option("--max-num-batched-tokens",
           "With --plan: most prompt tokens computed in one step; of a longer prompt the first step and the last one",
           kPlace<&backend::RunConfig::max_num_batched_tokens>, sized(1, 65536), {kInspect}, kCommon,
           {.foreign = "--ubatch-size -ub", .usual = "{}", .fill = usual_step}),
    Option("--context", "Tokens per window; each token is scored from those before it in its window",
           kPlace<&PerplexityOptions::context>, whole(2, 1 << 20), {kPerplexity}, kCommon, {.shown = true}),
    Option("--a", "One backend", kPlace<&CompareOptions::a>, words(kTwoBackends), {kCompare}),
    Option("--b", "The other backend", kPlace<&CompareOptions::b>, words(kTwoBackends), {kCompare}),
    Option("--tolerance", "Largest difference, relative to the stage's root mean square",
           kPlace<&CompareOptions::tolerance>, kPositive, {kCompare}, kCommon, {.shown = true}),
    Option("--card", "The card: {}", kPlace<&PredictOptions::card>, own(read_card<false>), {kPredict}, kCommon,
           {.type = "CARD", .fill = known_card_words, .required = true}),
    Option("-b,--batch", "Steps of so many sequences that generate; 0: none", kPlace<&PredictOptions::batches>,
           list(0, kMostSequences), {kPredict}),
    Option("-p,--n-prompt", "Prompts of so many tokens; 0: none", kPlace<&PredictOptions::prompts>,
           list(0, kMostTokens), {kPredict}),
    Option("-d,--n-depth",
           "Tokens of context before; more than one sequence: after the fewest of them, prompts: after none",
           kPlace<&PredictOptions::depths>, list(0, kMostTokens), {kPredict}),
    Option("--link", "Between several cards: {}; default what such cards usually have", kPlace<&PredictOptions::link>,
           kText, {kPredict}, kPerformance, {.fill = known_link_words}),
    Option("--link-us", "Microseconds that a short sum over the cards takes; default the link's",
           kPlace<&PredictOptions::link_us>, real(0, 1e6), {kPredict}, kPerformance),
    Option("--host-read",
           "Of experts that a card has no room for: GB/s that the host's memory gives (two channels: DDR4-3200 42, "
           "DDR5-5600 80)",
           kPlace<&PredictOptions::host_read>, real(1, 10000), {kPredict}, kPerformance),
    Option("--host-link", "And GB/s of copies to the card (PCIe 4.0 25, 5.0 50)", kPlace<&PredictOptions::host_link>,
           real(1, 10000), {kPredict}, kPerformance),
    Option("--neutral", "As if it were an sm_80 card: only the kernels that every card runs",
           kPlace<&PredictOptions::neutral>, kSwitch, {kPredict}, kExpert)};
static_assert(has_rows<InspectOptions, &InspectOptions::model, &InspectOptions::output>(kPlanRows));
static_assert(has_rows<PerplexityOptions, &PerplexityOptions::model, &PerplexityOptions::output,
                       &PerplexityOptions::input>(kPlanRows));
static_assert(
    has_rows<CompareOptions, &CompareOptions::model, &CompareOptions::output, &CompareOptions::prompt>(kPlanRows));
static_assert(has_rows<PredictOptions, &PredictOptions::model, &PredictOptions::output>(kPlanRows));

constexpr Option kSharedRows[] = {
    Option("--report", "Page to write, in Markdown: NAME.md",
           kPlace<&BenchOptions::report, &LoadOptions::report, &VerifyOptions::report>, checked(wrong_report),
           {kBench, kLoad, kVerify}, kCommon, {.type = "FILE", .excludes = "--speculative"}),
    Option("--cacert", "For https: PEM file of the authorities to trust; default: the system's",
           kPlace<&LoadOptions::cacert, &VerifyOptions::cacert>, kFilled, {kLoad, kVerify}, kExpert),
    Option("--insecure", "For https: accept any certificate", kPlace<&LoadOptions::insecure, &VerifyOptions::insecure>,
           kSwitch, {kLoad, kVerify}, kExpert, {.excludes = "--cacert"})};

constexpr Option kBenchRows[] = {
    Option("-p,--n-prompt", "Prompts to process, in tokens; 0: none", kPlace<&BenchOptions::prompts>,
           list(0, kMostTokens), {kBench}),
    Option("-n,--n-gen", "Tokens to generate; 0: none", kPlace<&BenchOptions::generates>, list(0, kMostTokens),
           {kBench}),
    Option("-d,--n-depth", "Tokens in the context before", kPlace<&BenchOptions::depths>, list(0, kMostTokens),
           {kBench}),
    Option("-b,--batch", "Sequences that generate together", kPlace<&BenchOptions::batches>, list(1, kMostSequences),
           {kBench}),
    Option("-r,--repetitions", "Times each test is measured", kPlace<&BenchOptions::repetitions>, whole(1, 1000),
           {kBench}, kCommon, {.shown = true}),
    Option("-o,--output", "The table's format", kPlace<&BenchOptions::format>, words(kTables), {kBench}),
    Option("--profile", "Also show where the time goes, by stage, on a GPU by kernel; takes one more repetition",
           kPlace<&BenchOptions::profile>, kSwitch, {kBench}),
    Option("--compare", "Compare two results of --json instead, A.json B.json, row by row",
           kPlace<&BenchOptions::compare>, several(kText), {kBench}, kCommon, {.type = "A B"}),
    Option(
        "--speculative-acceptance",
        "How often guesses are right. Up to 1: the chance of each, given those before it; above 1: the tokens that a step "
        "then gives a sequence, of at most --speculative-tokens guesses and its own",
        kPlace<&BenchOptions::acceptances>, own(read_acceptances, shown_acceptances), {kBench}, kPerformance,
        {.shown = true, .type = "LIST", .needs = "--speculative"}),
    Option(
        "--speculative-texts",
        "Lines of JSON with the texts set, prompt and answer (bench/prompts): drafts are as right as the proposer's would "
        "be there",
        kPlace<&BenchOptions::recorded>, several(kText), {kBench}, kPerformance,
        {.type = "FILE", .needs = "--speculative"}),
    Option("--speculative-draft-vocab", "eagle3: tokens that the head can draft, at most the model's",
           kPlace<&BenchOptions::draft_vocab>, whole(1, int64_t{1} << 30), {kBench}, kExpert,
           {.shown = true, .needs = "--speculative"}),
    Option("--allow-mismatch", "Compare results of other devices or models, or of unknown ones, all the same",
           kPlace<&BenchOptions::allow_mismatch>, kSwitch, {kBench}, kExpert, {.needs = "--compare"}),
    Option("--tune",
           "Instead: from how many tokens on which kernels are faster on this card, over 4 dummy layers of the model's "
           "shapes, for the Tuned of an architecture (src/backend/cuda/arch)",
           kPlace<&BenchOptions::tune>, kSwitch, {kBench}, kExpert, {.excludes = "--report"})};
static_assert(has_rows<BenchOptions, &BenchOptions::model, &BenchOptions::output, &BenchOptions::speculation,
                       &BenchOptions::command, &BenchOptions::environment>(kBenchRows, kSharedRows));

constexpr Option kLoadRows[] = {
    Option("--base-url", "The server: http(s)://HOST:PORT, and a path if it is not /v1", kPlace<&LoadOptions::base_url>,
           kText, {kLoad}, kCommon, {.required = true}),
    Option("-m,--model", "The name to ask for; default: the first that the server lists",
           kPlace<&client::Workload::model>, kFilled, {kLoad}),
    Option("--isl,--input-len", "Most tokens of a prompt", kPlace<&client::Workload::isl>, whole(1, kMostTokens),
           {kLoad}, kCommon, {.shown = true}),
    Option("--osl,--output-len", "Most tokens of an answer", kPlace<&client::Workload::osl>, whole(1, kMostTokens),
           {kLoad}, kCommon, {.shown = true}),
    Option("--range-ratio", "Lengths are uniform from this share of the most up to it; 1: all alike",
           kPlace<&client::Workload::range_ratio>, real(0, 1), {kLoad}, kCommon, {.shown = true}),
    Option("-c,--concurrency,--max-concurrency", "Requests at a time: a sweep of these",
           kPlace<&LoadOptions::concurrency>, list(1, 16384), {kLoad}),
    Option("--request-rate", "Instead: so many requests per second on average, as a Poisson process",
           kPlace<&LoadOptions::request_rate>, kPositive, {kLoad}, kCommon, {.excludes = "--concurrency"}),
    Option("--num-prompts", "Requests of a point; default: 10 per concurrent one, at a rate 200",
           kPlace<&LoadOptions::num_prompts>, whole(1, 1 << 24), {kLoad}),
    Option("--num-warmups", "Requests before each point; default: 2 per concurrent one, at a rate 2",
           kPlace<&LoadOptions::num_warmups>, whole(0, 1 << 24), {kLoad}),
    Option("-r,--repetitions", "Times each point is measured", kPlace<&LoadOptions::repetitions>, whole(1, 1000),
           {kLoad}, kCommon, {.shown = true}),
    Option("--endpoint", "completions: prompts of token ids; chat: of words, about one token each",
           kPlace<&client::Workload::api>, words(kApis), {kLoad}),
    Option("--temperature", "0: greedy", kPlace<&client::Workload::temperature>, real(0, 100), {kLoad}, kSampling,
           {.foreign = "--temp", .shown = true}),
    Option("!--no-ignore-eos", "Answers end where the model ends them; servers that know no ignore_eos",
           kPlace<&client::Workload::ignore_eos>, kSwitch, {kLoad}, kSampling),
    Option("--seed", "Same seed, same prompts; default 1", kPlace<&client::Workload::seed>, kSeeds, {kLoad}, kSampling,
           {.foreign = "-s"}),
    Option("--turns", "Of each conversation, chats only: every answer is part of the next prompt",
           kPlace<&client::Workload::turns>, whole(1, 1 << 16), {kLoad}, kExpert, {.shown = true}),
    Option("--think-time", "Seconds between an answer and the next turn, on average", kPlace<&LoadOptions::think_time>,
           real(0, 86400), {kLoad}, kExpert, {.shown = true}),
    Option("--tools", "Tools that chats offer, as OpenAI's; calls must be of one, and JSON",
           kPlace<&LoadOptions::tools>, kFilled, {kLoad}, kExpert, {.type = "builtin|FILE"}),
    Option("--tool-choice", "required: an answer without a call has failed", kPlace<&client::Workload::must_call>,
           words(kToolChoices), {kLoad}, kExpert, {.needs = "--tools"}),
    Option("--json-schema", "Schema that chats ask for; answers must be JSON", kPlace<&LoadOptions::json_schema>,
           kFilled, {kLoad}, kExpert, {.type = "builtin|FILE", .excludes = "--tools"}),
    Option("--prompt-form", "Of completions; text for servers that take no token ids", kPlace<&client::Workload::form>,
           words(kForms), {kLoad}, kExpert),
    Option("--vocab-size", "Token ids are below this", kPlace<&client::Workload::vocab_size>, whole(2, 1 << 24),
           {kLoad}, kExpert, {.usual = "the model's where the server tells, else 32000"}),
    Option("--prompts-per-client", "Requests of a point for each concurrent one",
           kPlace<&LoadOptions::prompts_per_client>, whole(1, 1 << 10), {kLoad}, kExpert,
           {.shown = true, .excludes = "--num-prompts"}),
    Option("--warmups-per-client", "Requests before each point for each concurrent one",
           kPlace<&LoadOptions::warmups_per_client>, whole(0, 1 << 10), {kLoad}, kExpert,
           {.shown = true, .excludes = "--num-warmups"}),
    Option("--prefix-len", "Tokens at the beginning that all prompts share", kPlace<&client::Workload::prefix_len>,
           whole(0, kMostTokens), {kLoad}, kExpert, {.shown = true}),
    Option("--timeout", "Seconds that a request may take", kPlace<&LoadOptions::timeout>, whole(1, 86400), {kLoad},
           kExpert, {.shown = true}),
    Option("--gpus", "GPUs of the server: throughput per GPU is divided by them", kPlace<&LoadOptions::gpus>,
           whole(1, 1 << 16), {kLoad}, kExpert, {.shown = true}),
    Option("--device", "What the server runs on, for the result: bench --compare wants to know",
           kPlace<&LoadOptions::device>, kFilled, {kLoad}, kExpert),
    Option("--api-key", "Sent as a bearer token; default: OPENAI_API_KEY", kPlace<&LoadOptions::api_key>, kFilled,
           {kLoad}, kExpert, {.secret = true})};
static_assert(has_rows<LoadOptions, &LoadOptions::settings, &LoadOptions::output, &LoadOptions::workload,
                       &LoadOptions::vocab_given, &LoadOptions::command, &LoadOptions::environment>(kLoadRows,
                                                                                                    kSharedRows));
static_assert(has_rows<client::Workload, &client::Workload::tools, &client::Workload::json_schema>(kLoadRows));

constexpr Option kVerifyRows[] = {
    Option(
        "--level",
        "1: it runs; 1.5: by which kernels; 2: right; 3: under stress; 4: how fast; 5: beside a baseline; 6: features "
        "together; several: 1,1.5",
        kPlace<&VerifyOptions::levels>, own(read_levels, shown_levels), {kVerify}, kCommon,
        {.usual = "all", .type = "LIST"}),
    Option(
        "--features",
        "Level 6: features whose combinations are tried (nibble features), one with some of its values as kv=bf16/fp8; "
        "default: by the backend",
        kPlace<&VerifyOptions::features>, kFilled, {kVerify}, kExpert, {.type = "LIST"}),
    Option("--max-combinations", "Level 6: most combinations that are run", kPlace<&VerifyOptions::most_combinations>,
           whole(1, 4096), {kVerify}, kExpert, {.shown = true}),
    Option("--rounds",
           "Level 6: times that combinations are measured in turn; 0: 5 where the model loads in no time, else 1",
           kPlace<&VerifyOptions::rounds>, whole(0, 100), {kVerify}, kExpert, {.shown = true}),
    Option("--preset", "Level 6 alone, of these instead: B1 to C4 of nibble features --markdown",
           kPlace<&VerifyOptions::presets>, own(read_presets), {kVerify}, kExpert,
           {.type = "LIST", .excludes = "--features"}),
    Option("--base-url", "Verify a server instead, any with OpenAI's API: levels 1, 3 and 4",
           kPlace<&VerifyOptions::base_url>, kFilled, {kVerify}),
    Option(
        "--baseline",
        "Level 5: the run to compare with; default: the one that comes with nibble for this device, model and settings",
        kPlace<&VerifyOptions::baseline>, kFilled, {kVerify}, kExpert, {.type = "FILE", .excludes = "--base-url"}),
    Option("--save-baseline", "Level 5: keep this run, to compare later ones with",
           kPlace<&VerifyOptions::save_baseline>, kFilled, {kVerify}, kExpert,
           {.type = "FILE", .excludes = "--base-url"}),
    Option("--served-model", "The name to ask it for; default: the first that it lists",
           kPlace<&VerifyOptions::served_model>, kFilled, {kVerify}),
    Option("--api-key", "Sent to it as a bearer token; default: OPENAI_API_KEY", kPlace<&VerifyOptions::api_key>,
           kFilled, {kVerify}, kCommon, {.secret = true})};
static_assert(has_rows<VerifyOptions, &VerifyOptions::model, &VerifyOptions::output, &VerifyOptions::command,
                       &VerifyOptions::environment>(kVerifyRows, kSharedRows));

}  // namespace

std::string_view name_of(VerifyLevel level) { return kLevels[static_cast<size_t>(level)].word; }

std::span<const Option> option_table() {
  static const std::vector<Option> table = [] {
    std::vector<Option> rows;
    const auto add = [&rows](std::span<const Option> more) { rows.insert(rows.end(), more.begin(), more.end()); };
    add(model_rows());
    for (const std::span<const Option> of_commands :
         {std::span<const Option>(kServeRows), std::span<const Option>(kChatRows), std::span<const Option>(kFileRows),
          std::span<const Option>(kPlanRows), std::span<const Option>(kBenchRows), std::span<const Option>(kLoadRows),
          std::span<const Option>(kVerifyRows), std::span<const Option>(kSharedRows)})
      add(of_commands);
    add(run_rows());
    return rows;
  }();
  return table;
}

}  // namespace nibble::app
