#include "app/vllm_flags.h"

#include "app/vllm_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <string_view>
#include <system_error>

namespace nibble::app {
namespace {

// `values`: those that are accepted, all where empty; "-": flags without a value, of which there is --no-… as well.
struct Foreign {
  const char* flags;
  const char* values;
  const char* why;
};
constexpr Foreign kWithoutEffect[] = {
    {"--trust-remote-code", "-", "no code is ever loaded with a model"},
    {"--enable-auto-tool-choice", "-", "tool calls are always recognised"},
    {"--tool-call-parser", "openai", "Harmony is the only format"},
    {"--reasoning-parser", "openai_gptoss", "Harmony is the only format"},
    {"--response-role", "assistant", "Harmony is the only format"},
    {"--chat-template-content-format", "", "Harmony is the only format"},
    {"--enable-reasoning", "-", "reasoning is always told apart"},
    {"--quantization", "mxfp4", "the experts are MXFP4 as they come"},
    {"--dtype", "auto bfloat16", "activations are 16 bits wide with sums in 32"},
    {"--tensor-parallel-size --pipeline-parallel-size --data-parallel-size --data-parallel-size-local "
     "--decode-context-parallel-size --prefill-context-parallel-size --nnodes",
     "1", "one device serves"},
    {"--node-rank", "0", "one device serves"},
    {"--master-addr --master-port --all2all-backend --max-parallel-loading-workers", "", "one device serves"},
    {"--disable-custom-all-reduce --disable-nccl-for-dp-synchronization --eplb-log-balancedness", "-",
     "one device serves"},
    {"--eplb-config --expert-placement-strategy --num-redundant-experts --eplb-window-size --eplb-step-interval "
     "--dbo-decode-token-threshold --dbo-prefill-token-threshold --dcp-kv-cache-interleave-size "
     "--cp-kv-cache-interleave-size",
     "", "one device serves"},
    {"--api-server-count", "1", "one process serves"},
    {"--distributed-executor-backend", "", "one process serves"},
    {"--ray-workers-use-nsight", "-", "one process serves"},
    {"--worker-cls", "auto", "one process serves"},
    {"--block-size", "", "a page has the size that the backend wants"},
    {"--swap-space", "", "nothing is swapped out"},
    {"--cpu-offload-gb", "0", "weights stay on one device"},
    {"--enable-chunked-prefill", "-", "prompts are always computed in chunks"},
    {"--num-lookahead-slots --num-scheduler-steps --preemption-mode --prefix-caching-hash-algo", "",
     "there is one scheduler"},
    {"--disable-hybrid-kv-cache-manager --disable-cascade-attn --disable-chunked-mm-input --disable-async-output-proc",
     "-", "there is one scheduler"},
    {"--kv-sharing-fast-prefill", "-", "no layers share their keys and values"},
    {"--kv-offloading-backend", "", "the KV cache stays where it is"},
    {"--moe-backend --mxfp4-backend", "", "kernels are chosen from the shapes, or with --moe-kernel"},
    {"--enable-flashinfer-autotune", "-", "kernels are chosen from the shapes"},
    {"--kernel-config --additional-config", "", "kernels are chosen from the shapes"},
    {"--attention-config", "", "kernels are chosen from the shapes, or with --attention-backend"},
    {"--compilation-config", "", "nothing is compiled at run time"},
    {"--optimization-level", "0 1 2 3", "nothing is compiled at run time"},
    {"--max-seq-len-to-capture --max-cudagraph-capture-size", "", "nothing is compiled at run time"},
    {"--cuda-graph-sizes --cudagraph-capture-sizes", "*", "nothing is compiled at run time"},
    {"--uvicorn-log-level --log-config-file", "", "there is no uvicorn"},
    {"--disable-uvicorn-access-log --disable-fastapi-docs", "-", "there is no uvicorn"},
    {"--disable-log-stats --aggregate-engine-logging --kv-cache-metrics --cudagraph-metrics --enable-mfu-metrics", "-",
     "figures are under /metrics"},
    {"--enable-request-id-headers", "-", "X-Request-Id is always there"},
    {"--log-error-stack", "-", "errors say what was wrong"},
    {"--h11-max-header-count", "", "headers are bounded by their bytes"},
    {"--show-hidden-metrics-for-version", "", "figures are under /metrics"},
    {"--max-log-len", "", "prompts are logged with --log-prompts only"},
    {"--enable-server-load-tracking", "-", "/load is always there"},
    {"--enable-prompt-tokens-details", "-", "cached tokens are always told"},
    {"--exclude-tools-when-tool-choice-none", "-", "tool_choice none makes sure of it"},
    {"--max-logprobs", "20", "requests may ask for 20"},
    {"--logprobs-mode", "raw_logprobs", "logprobs are the model's own"},
    {"--generation-config", "", "requests say how to sample; the default is temperature 1"},
    {"--tokenizer-mode", "auto hf", "there is one tokenizer"},
    {"--tokenizer-revision --code-revision --revision --download-dir --hf-token", "",
     "nibble pull has --revision, and HF_HOME and HF_TOKEN say the rest"},
    {"--config-format", "auto hf", "files say themselves what they are"},
    {"--model-impl", "auto vllm", "there is one implementation"},
    {"--task --runner", "auto generate", "text is generated"},
    {"--convert", "auto none", "text is generated"},
    {"--safetensors-load-strategy --model-loader-extra-config --pt-load-map-location", "",
     "weights are read in one way"},
    {"--ignore-patterns", "*", "weights are read in one way"},
    {"--use-tqdm-on-load", "-", "/health tells how far loading is"},
    {"--guided-decoding-backend --structured-outputs-config", "", "there is one grammar engine"},
    {"--guided-decoding-disable-fallback", "-", "there is one grammar engine"},
    {"--limit-mm-per-prompt --mm-processor-kwargs --allowed-local-media-path --allowed-media-domains --media-io-kwargs "
     "--mm-processor-cache-gb --mm-processor-cache-type --mm-shm-cache-max-object-size-mb --mm-encoder-tp-mode "
     "--video-pruning-rate",
     "", "gpt-oss reads text only"},
    {"--disable-mm-preprocessor-cache --skip-mm-profiling --interleave-mm-strings --language-model-only "
     "--enable-multimodal-encoder-data-parallel",
     "-", "gpt-oss reads text only"},
    {"--mamba-cache-dtype --mamba-ssm-cache-dtype --mamba-block-size", "", "gpt-oss has attention only"},
    {"--max-loras --max-lora-rank --lora-extra-vocab-size --lora-dtype --max-cpu-loras", "", "there are no adapters"},
    {"--enable-lora-bias --fully-sharded-loras", "-", "there are no adapters"},
    {"--seed", "", "each request has its own seed"},
    {"--stream-interval", "", "every token is sent at once"},
    {"--allowed-methods --allowed-headers", "", "what the API takes is allowed"},
};
constexpr Foreign kRefused[] = {
    {"--speculative-config", "", "speculative decoding is not built yet"},
    {"--enable-expert-parallel --data-parallel-hybrid-lb --data-parallel-external-lb --enable-eplb --enable-dbo "
     "--headless",
     "-", "one device serves"},
    {"--data-parallel-rank --data-parallel-start-rank --data-parallel-address --data-parallel-rpc-port "
     "--data-parallel-backend",
     "", "one device serves"},
    {"--enable-lora", "-", "there are no adapters"},
    {"--lora-modules", "*", "there are no adapters"},
    {"--tool-server", "", "there are no built-in tools"},
    {"--chat-template --default-chat-template-kwargs", "", "gpt-oss speaks Harmony"},
    {"--trust-request-chat-template", "-", "gpt-oss speaks Harmony"},
    {"--tool-parser-plugin --reasoning-parser-plugin --io-processor-plugin --logits-processors --middleware", "*",
     "no code is ever loaded"},
    {"--scheduler-cls --worker-extension-cls", "", "no code is ever loaded"},
    {"--enable-tokenizer-info-endpoint", "-", "/tokenize and /detokenize are there"},
    {"--profiler-config", "", "nibble bench --profile measures"},
    {"--override-generation-config", "", "requests say how to sample"},
    {"--kv-transfer-config --kv-events-config --ec-transfer-config --kv-offloading-size", "",
     "the KV cache stays where it is"},
    {"--num-gpu-blocks-override --kv-cache-memory-bytes", "", "want --kv-tokens"},
    {"--calculate-kv-scales", "-", "fp8 keys and values need no scales"},
    {"--disable-sliding-window", "-", "gpt-oss was trained with its windows"},
    {"--skip-tokenizer-init --enable-prompt-embeds --tokens-only", "-", "requests come as text or token ids"},
    {"--enable-sleep-mode", "-", "weights stay where they are"},
    {"--tokenizer", "", "the tokenizer comes with the model"},
    {"--hf-overrides --hf-config-path --rope-scaling --rope-theta", "", "the configuration comes with the model"},
    {"--otlp-traces-endpoint", "", "figures are under /metrics"},
    {"--collect-detailed-traces", "*", "figures are under /metrics"},
    {"--enable-log-outputs", "-", "what the model says is never logged"},
    {"--return-tokens-as-token-ids", "-", "ask with return_token_ids"},
    {"--enable-force-include-usage", "-", "ask with stream_options"},
    {"--ssl-ca-certs --ssl-cert-reqs --ssl-ciphers", "", "clients are known by --api-key"},
    {"--enable-ssl-refresh", "-", "the certificate is read at the start"},
    {"--allow-credentials", "-", "clients are known by --api-key, not by cookies"},
    {"--root-path", "", "put it into the proxy"},
    {"--uds", "", "want --host and --port"},
};

// vLLM's values of our own flags. What maps to auto are its names for its own fast kernels.
struct Value {
  const char* flag;
  const char* theirs;
  const char* ours;
};
constexpr Value kValues[] = {
    {"--attention-backend",
     "FLASHINFER FLASHINFER_VLLM_V1 FLASH_ATTN FLASH_ATTN_VLLM_V1 TRITON_ATTN TRITON_ATTN_VLLM_V1 FLEX_ATTENTION "
     "TORCH_SDPA XFORMERS CPU_ATTN",
     "auto"},
    {"--attention-sinks", "1 true True", "on"},
    {"--attention-sinks", "0 false False", "off"},
    {"--moe-kernel", "triton", "auto"},
    {"--kv-cache-dtype", "bfloat16", "bf16"},
    {"--kv-cache-dtype", "fp8_e4m3", "fp8"},
    {"--load-format", "hf", "auto"},
    {"--load-format", "fastsafetensors runai_streamer", "safetensors"},
    {"--allowed-origin", R"(["*"])", "*"},
};

constexpr std::pair<std::string_view, std::string_view> kShortNames[] = {
    {"-tp", "--tensor-parallel-size"},
    {"-n", "--nnodes"},
    {"-r", "--node-rank"},
    {"-pp", "--pipeline-parallel-size"},
    {"-dp", "--data-parallel-size"},
    {"-dpl", "--data-parallel-size-local"},
    {"-dpn", "--data-parallel-rank"},
    {"-dpr", "--data-parallel-start-rank"},
    {"-dpa", "--data-parallel-address"},
    {"-dpp", "--data-parallel-rpc-port"},
    {"-dpb", "--data-parallel-backend"},
    {"-dph", "--data-parallel-hybrid-lb"},
    {"-dpe", "--data-parallel-external-lb"},
    {"-dcp", "--decode-context-parallel-size"},
    {"-pcp", "--prefill-context-parallel-size"},
    {"-ep", "--enable-expert-parallel"},
    {"-asc", "--api-server-count"},
    {"-cc", "--compilation-config"},
    {"-ac", "--attention-config"},
    {"-sc", "--speculative-config"},
    {"-O", "--compilation-config"},
};

bool has_word(std::string_view words, std::string_view word) {
  return fmt::format(" {} ", words).find(fmt::format(" {} ", word)) != std::string::npos;
}

// -tp=2, -cc.level=3 and -O3 by their long names; anything else as it is.
std::string with_long_name(const std::string& argument) {
  for (const auto& [short_name, name] : kShortNames) {
    if (!argument.starts_with(short_name)) continue;
    const std::string rest = argument.substr(short_name.size());
    if (rest.empty() || rest[0] == '=' || rest[0] == '.') return std::string(name) + rest;
    if (short_name == "-O") return fmt::format("{}={}", name, rest);
  }
  return argument;
}

using OnValue = std::function<void(const std::string& value)>;

// What is given twice counts as given last, as there.
Flag add_foreign_flag(Flags flags, const std::string& flag, std::string_view values, const OnValue& use) {
  if (values == "-") return flags.mention(flag + ",!--no-" + flag.substr(2), [use] { use(""); }).last_counts();
  const bool is_config = flag.ends_with("-config");  // field by field, or as JSON
  if (values == "*" || is_config) {
    return flags
        .take_all(flag,
                  [use, is_config](const std::vector<std::string>& found) {
                    if (!is_config) return use(fmt::format("{}", fmt::join(found, " ")));
                    for (const std::string& value : found) use(value);
                  })
        .one_value(is_config);
  }
  return flags.take(flag, use).last_counts();
}

void add_foreign(Flags flags, const Foreign& row,
                 const std::function<void(const std::string&, const std::string&)>& use) {
  std::string_view rest = row.flags;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(' '), rest.size());
    const std::string flag(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    add_foreign_flag(flags, flag, row.values, [use, flag](const std::string& value) { use(flag, value); }).hidden();
  }
}

void note(ServeOptions& o, std::string text) {
  std::vector<std::string>& notes = o.model.settings.notes;
  if (std::find(notes.begin(), notes.end(), text) == notes.end()) notes.push_back(std::move(text));
}

// What a field of --attention-config or --compilation-config, or -O0, says of our flags; empty where it says nothing.
Setting implied_by(const std::string& flag, const ConfigField& field) {
  if (flag == "--attention-config" && field.name == "backend") return {"--attention-backend", field.value, flag};
  const bool off = field.value == "0" || field.value == "NONE" || field.value == "none" || field.value == "false";
  constexpr std::string_view kGraphs[] = {"", "level", "optimization_level", "cudagraph_mode", "use_cudagraph"};
  const bool graphs = flag == "--compilation-config" || flag == "--optimization-level";
  if (graphs && off && std::ranges::find(kGraphs, field.name) != std::end(kGraphs))
    return {"--enforce-eager", "true", flag};
  return {};
}

// Whatever else the flag's value says has no effect.
void take_without_effect(ServeOptions& o, const std::string& flag, const Foreign& row, const std::string& value) {
  const bool is_config = flag.ends_with("-config") && flag != "--generation-config";
  bool all = true;
  std::vector<ConfigField> fields;
  if (is_config) fields = config_fields(flag, value);
  if (flag == "--optimization-level") fields = {{"", value}};
  for (const ConfigField& field : fields) {
    Setting implied = implied_by(flag, field);
    all = all && !implied.flag.empty();
    if (implied.flag.empty()) continue;
    note(o, fmt::format("{} {} is taken as {} {}", flag, value, implied.flag, implied.value));
    o.model.settings.implied.push_back(std::move(implied));
  }
  if (fields.empty() || !all)
    note(o, fmt::format("{} makes no difference{}: {}", flag, all || fields.size() < 2 ? "" : " otherwise", row.why));
}

void take_values(Flags flags, const Value& row, ServeOptions& o) {
  flags.get(row.flag).rewrite([&o, row](const std::string& found) -> std::string {
    if (!has_word(row.theirs, found)) return found;
    note(o, fmt::format("{} {} is taken as {}", row.flag, found, row.ours));
    return row.ours;
  });
}

// 8k is 8000, 8K 8192. What is neither is left to the option's own check.
std::string without_unit(const std::string& found) {
  constexpr std::pair<char, int64_t> kUnits[] = {{'k', 1000}, {'K', 1024}, {'m', 1'000'000}, {'M', 1 << 20}};
  for (const auto& [letter, times] : kUnits) {
    int64_t value = 0;
    const char* const end = found.data() + found.size();
    const auto [rest, error] = std::from_chars(found.data(), end, value);
    if (error == std::errc() && rest + 1 == end && *rest == letter && !__builtin_mul_overflow(value, times, &value))
      return fmt::format("{}", value);
  }
  return found;
}

}  // namespace

void respell_vllm_arguments(std::vector<std::string>& arguments) {
  for (size_t i = 0; i + 1 < arguments.size(); ++i)  // -q is --quiet here unless vLLM's value follows
    if (arguments[i] == "-q" && arguments[i + 1] == "mxfp4") arguments[i] = "--quantization";
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string& argument = arguments[i];
    argument = with_long_name(argument);
    if (!argument.starts_with("--")) continue;
    const size_t end = std::min(argument.find('='), argument.size());
    std::replace(argument.begin(), argument.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
    const size_t dot = argument.find("-config.");
    if (dot >= end) continue;
    if (end == argument.size()) {  // its value is the next word; none: true
      const bool has_value = i + 1 < arguments.size() && !arguments[i + 1].starts_with("--");
      argument += "=" + (has_value ? arguments[i + 1] : "true");
      if (has_value) arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    }
    arguments[i][dot + 7] = '=';  // --x-config=field=value: one field of a JSON flag
  }
}

void add_vllm_flags(Flags flags, ServeOptions& o) {
  for (const Foreign& row : kWithoutEffect) {
    add_foreign(flags, row, [&o, row](const std::string& flag, const std::string& value) {
      const bool any = std::string_view("-*").find(row.values) != std::string_view::npos;  // of "" too
      if (!any && !has_word(row.values, value))
        refuse_value(flag, fmt::format("only {} is supported, found {}: {}", row.values, value, row.why));
      take_without_effect(o, flag, row, value);
    });
  }
  for (const Foreign& row : kRefused) {
    add_foreign(flags, row, [row](const std::string& flag, const std::string&) {
      refuse_value(flag, fmt::format("is not supported: {}", row.why));
    });
  }
  for (const Value& row : kValues) take_values(flags, row, o);
  for (const char* flag : {"--max-model-len", "--max-num-batched-tokens", "--max-num-seqs", "--kv-tokens"}) {
    flags.get(flag).rewrite(without_unit);
  }
}

std::string our_value(const std::string& flag, const std::string& found) {
  for (const Value& row : kValues)
    if (row.flag == flag && has_word(row.theirs, found)) return row.ours;
  return found;
}

}  // namespace nibble::app
