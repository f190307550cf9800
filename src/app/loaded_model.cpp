#include "app/loaded_model.h"

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/reference/reference_backend.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "checkpoint/hf_config.h"
#include "model/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <thread>

namespace nibble::app {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxTextBytes = size_t{1} << 30;

std::string read_stream(std::FILE* stream, const std::string& name) {
  std::string text;
  char buffer[1 << 16];
  for (size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, stream)) > 0;) {
    text.append(buffer, n);
    if (text.size() > kMaxTextBytes)
      throw Error(Code::kInvalidRequest, "[input] {}: want at most {} bytes, found more", name, kMaxTextBytes);
  }
  if (std::ferror(stream) != 0) throw Error(Code::kIo, "[input] {}: cannot read: {}", name, std::strerror(errno));
  return text;
}

// OpenAI's original/ names no end tokens; these are what generation_config.json lists for the same model.
std::vector<int32_t> end_tokens(const text::Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (const char* name : {"<|return|>", "<|endoftext|>", "<|call|>"}) {
    if (const auto id = tokenizer.special_id(name)) ids.push_back(*id);
  }
  return ids;
}

bool is_preset(const ModelOptions& options) {
  return options.load_format == LoadFormat::kDummy && !fs::exists(options.model);
}

}  // namespace

model::ModelConfig open_config(const ModelOptions& options) {
  if (is_preset(options)) return model::preset(options.model);
  const fs::path path = options.model;
  if (!fs::exists(path)) {
    throw Error(Code::kIo,
                "[load] {}: want a model directory, found nothing there (for random weights: --load-format dummy with "
                "gpt-oss-20b, gpt-oss-120b or tiny)",
                options.model);
  }
  return model::from_hf(checkpoint::read_hf_config(fs::is_directory(path) ? path : path.parent_path()));
}

text::Tokenizer open_tokenizer(const ModelOptions& options, const model::ModelConfig& config) {
  const fs::path path = options.model;
  const fs::path file = (fs::is_directory(path) ? path : path.parent_path()) / "tokenizer.json";
  constexpr int64_t kO200kVocab = 201088;
  if (is_preset(options) || (!fs::exists(file) && config.dims.vocab == kO200kVocab))
    return text::Tokenizer::o200k_harmony();
  text::Tokenizer tokenizer = text::Tokenizer::from_file(file);
  if (tokenizer.max_id() >= config.dims.vocab) {
    throw Error(Code::kCorrupt, "[load] {}: want token ids below the model's vocabulary of {}, found {}", file.string(),
                config.dims.vocab, tokenizer.max_id());
  }
  return tokenizer;
}

ModelSource open_model(const ModelOptions& options, Terminal& terminal) {
  model::ModelConfig config = open_config(options);
  text::Tokenizer tokenizer = open_tokenizer(options, config);
  if (config.eos_ids.empty()) config.eos_ids = end_tokens(tokenizer);
  ModelSource source{std::move(config), std::move(tokenizer), {}, {}, {}};
  ThreadPool pool(thread_count(options));
  if (options.load_format == LoadFormat::kDummy) {
    terminal.progress("making dummy weights", 0, "");
    source.dummy.emplace(source.config, options.dummy_seed, &pool);
    source.weights = source.dummy->weights();
  } else {
    terminal.progress("checking weights", 0, options.model);
    source.checkpoint.emplace(checkpoint::Checkpoint::open(options.model));
    source.weights = model::bind_weights(source.checkpoint->entries(), source.config, {.pool = &pool});
  }
  terminal.end_progress();
  return source;
}

int thread_count(const ModelOptions& options) {
  return options.threads > 0 ? options.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::unique_ptr<backend::Backend> make_backend(BackendKind kind, const ModelOptions& options,
                                               const backend::BackendConfig& config) {
  if (kind == BackendKind::kReference) return backend::make_reference_backend(config);
  const bool f32 = options.kv_cache_dtype == KvCacheDtype::kF32;
  if (kind == BackendKind::kCuda) {
    using Kv = backend::CudaOptions::Kv;
    return backend::make_cuda_backend(config, {.kv = f32 ? Kv::kF32 : Kv::kBf16,
                                               .moe = options.moe_kernel,
                                               .eager = options.enforce_eager});
  }
  const auto kv = f32 ? backend::KvDtype::kF32 : backend::KvDtype::kBf16;
  return backend::make_cpu_backend(config, {.threads = thread_count(options), .kv_dtype = kv});
}

namespace {

// The options of one backend are not ignored with another.
const ModelOptions& checked(const ModelOptions& options) {
  const bool cuda = options.backend == BackendKind::kCuda;
  if (!cuda && options.moe_kernel != backend::MoeKernel::kAuto)
    throw Error(Code::kUnsupported, "[options] --moe-kernel {}: want --backend cuda",
                backend::name_of(options.moe_kernel));
  if (!cuda && options.enforce_eager) throw Error(Code::kUnsupported, "[options] --enforce-eager: want --backend cuda");
  return options;
}

}  // namespace

Runtime::Runtime(const ModelSource& source, const ModelOptions& options, const engine::SessionLimits& limits,
                 Terminal& terminal)
    : be_(make_backend(options.backend, checked(options),
                       model::backend_config(source.config, engine::step_limits(limits), options.dense))) {
  const auto start = std::chrono::steady_clock::now();
  model_ = model::load(*be_, source.config, source.weights, [&](const model::LoadProgress& p) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    terminal.progress("loading",
                      static_cast<double>(p.done_bytes) / static_cast<double>(std::max<int64_t>(p.total_bytes, 1)),
                      fmt::format("{} at {}/s", format_bytes(static_cast<double>(p.done_bytes)),
                                  format_bytes(static_cast<double>(p.done_bytes) / std::max(seconds, 1e-3))));
  });
  terminal.end_progress();
  model_.attention_sinks = options.attention_sinks;
  session_.emplace(*be_, model_, limits);
}

int64_t context_length(const ModelOptions& options, const model::ModelConfig& config, int64_t fallback) {
  if (options.max_model_len > config.dims.max_context) {
    throw Error(Code::kInvalidRequest, "[options] --max-model-len: want at most {} (the model's context), found {}",
                config.dims.max_context, options.max_model_len);
  }
  return std::min(options.max_model_len > 0 ? options.max_model_len : fallback, int64_t{config.dims.max_context});
}

std::string_view token_text(const text::Tokenizer& tokenizer, int32_t token) {
  return tokenizer.contains(token) ? tokenizer.token_bytes(token) : std::string_view();
}

std::string read_text(const TextInput& input) {
  if (input.file.empty() && input.given) return input.text;
  if (input.file.empty() || input.file == "-") return read_stream(stdin, "standard input");
  return read_text(input.file);
}

std::string read_text(const std::filesystem::path& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) throw Error(Code::kIo, "[input] {}: cannot open: {}", path.string(), std::strerror(errno));
  return read_stream(file.get(), path.string());
}

}  // namespace nibble::app
