// nibble synth, convert and quantize: commands that write model files.

#include "app/setup/commands.h"
#include "app/setup/interrupt.h"
#include "app/setup/loaded_model.h"
#include "app/setup/named_model.h"
#include "app/setup/terminal.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "convert/gguf.h"
#include "convert/quantize.h"
#include "convert/synth.h"
#include "text/tokenizer_parts.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace nibble::app {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

void show_writing(Terminal& terminal, int64_t done_bytes, int64_t total_bytes, std::string_view file) {
  const auto done = static_cast<double>(done_bytes), total = static_cast<double>(std::max<int64_t>(total_bytes, 1));
  terminal.progress("writing", done / total,
                    fmt::format("{} of {} ({})", format_bytes(done), format_bytes(total), file));
}

// The keys that tokenizer_from_gguf reads.
std::vector<checkpoint::GgufEntry> gguf_entries(text::TokenList list) {
  std::vector<int32_t> kinds;
  for (const text::TokenKind kind : list.kinds) kinds.push_back(static_cast<int32_t>(kind));
  std::vector<checkpoint::GgufEntry> entries;
  entries.push_back({std::string(kGgufModel), std::string("gpt2")});
  entries.push_back({std::string(kGgufPre), std::string("gpt-4o")});
  entries.push_back({std::string(kGgufTokens), std::move(list.tokens)});
  entries.push_back({std::string(kGgufKinds), std::move(kinds)});
  entries.push_back({std::string(kGgufMerges), std::move(list.merges)});
  return entries;
}

struct GgufOutput {
  fs::path destination;
  DType dense = DType::kGgmlQ8;
  int64_t part_bytes = 0;
  ThreadPool* pool = nullptr;
  bool json = false;  // tell it as JSON
};

// Writes the model with its tokeniser, shows progress, and reports what was written.
void write_gguf_model(const model::ModelConfig& config, const text::TokenizerParts& tokenizer,
                      const convert::TensorSource& source, const GgufOutput& output, Terminal& terminal) {
  const auto start = Clock::now();
  const auto vocab = static_cast<size_t>(config.dims.vocab);
  const std::vector<checkpoint::GgufEntry> entries = gguf_entries(text::list_from_parts(tokenizer, vocab));
  int64_t bytes = 0;
  const Interrupt interrupt(kEndings);
  const auto paths = convert::export_gguf(
      config, source, output.destination,
      {.dense = output.dense, .part_bytes = output.part_bytes, .tokenizer = entries, .pool = output.pool},
      [&](const convert::ExportProgress& p) {
        interrupt.throw_if_requested();
        bytes = p.done_bytes;
        show_writing(terminal, p.done_bytes, p.total_bytes, p.file);
      });
  terminal.end_progress();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  nlohmann::ordered_json json = {{"files", nlohmann::json::array()}, {"bytes", bytes}, {"seconds", seconds}};
  for (const fs::path& path : paths) json["files"].push_back(path.string());
  if (output.json) terminal.print_json(json);
  terminal.note(fmt::format("{}{}: {} in {:.1f} s", paths.front().string(),
                            paths.size() > 1 ? fmt::format(" and {} more", paths.size() - 1) : "",
                            format_bytes(static_cast<double>(bytes)), seconds));
}

void synth_gguf(const model::ModelConfig& preset, const SynthOptions& options, ThreadPool& pool, Terminal& terminal) {
  const model::ModelConfig config = options.layers > 0 ? model::truncated(preset, options.layers) : preset;
  std::array<std::vector<std::byte>, 2> bytes;  // by Part
  const convert::TensorSource made = [&](const model::ManifestItem& item) -> RawTensor {
    auto& into = bytes[static_cast<size_t>(item.part)];
    into.resize(static_cast<size_t>(item.bytes()));
    convert::fill_synthetic(item, options.seed, {.offset_bytes = 0, .bytes = into}, &pool);
    return {.dtype = item.dtype, .shape = item.shape, .bytes = into};
  };
  write_gguf_model(config, text::read_tokenizer_json(text::make_o200k_tokenizer_json(), "o200k_harmony"), made,
                   {.destination = options.destination,
                    .part_bytes = options.part_bytes,
                    .pool = &pool,
                    .json = options.output.json},
                   terminal);
}

text::TokenizerParts tokenizer_parts(const ModelOptions& options) {
  const fs::path path = options.model;
  const fs::path file = (fs::is_directory(path) ? path : path.parent_path()) / "tokenizer.json";
  if (!fs::exists(file)) return text::read_tokenizer_json(text::make_o200k_tokenizer_json(), "o200k_harmony");
  return text::read_tokenizer_json(read_text(file), file.string());
}

MxFormat format_of(const std::string& name) {
  if (name == "mxfp8_e4m3") return MxFormat::kMxfp8E4m3;
  if (name == "mxfp8_e5m2") return MxFormat::kMxfp8E5m2;
  if (name == "mxfp6_e2m3") return MxFormat::kMxfp6E2m3;
  if (name == "mxfp6_e3m2") return MxFormat::kMxfp6E3m2;
  return MxFormat::kMxfp4;
}

}  // namespace

int execute(const SynthOptions& options) {
  Terminal terminal(options.output);
  const model::ModelConfig config = model::preset(options.preset);
  ThreadPool pool(thread_count({}));
  const bool named_gguf = options.destination.extension() == ".gguf";
  if (options.format == CheckpointFormat::kGguf || (options.format == CheckpointFormat::kAuto && named_gguf)) {
    synth_gguf(config, options, pool, terminal);
    return kExitOk;
  }
  if (options.part_bytes > 0) throw Error(Code::kInvalidRequest, "--part-bytes: want --format gguf with it");
  const auto start = Clock::now();
  int64_t written = 0;
  const Interrupt interrupt(kEndings);
  convert::synth_checkpoint(config, options.destination,
                            {.seed = options.seed,
                             .layers = options.layers,
                             .tokenizer_json = text::make_o200k_tokenizer_json(),
                             .pool = &pool},
                            [&](const convert::SynthProgress& p) {
                              interrupt.throw_if_requested();
                              written = p.done_bytes;
                              show_writing(terminal, p.done_bytes, p.total_bytes, p.file);
                            });
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (options.output.json)
    terminal.print_json(nlohmann::ordered_json{{"directory", options.destination.string()},
                                               {"preset", options.preset},
                                               {"layers", options.layers > 0 ? options.layers : config.dims.layers},
                                               {"seed", options.seed},
                                               {"bytes", written},
                                               {"seconds", seconds}});
  terminal.note(fmt::format("{}: {} in {:.1f} s", options.destination.string(),
                            format_bytes(static_cast<double>(written)), seconds));
  return kExitOk;
}

int execute(const ConvertOptions& asked) {
  ConvertOptions options = asked;
  Terminal terminal(options.output);
  options.model = with_files(asked.model, terminal);
  if (is_gguf(options.model))
    throw Error(Code::kInvalidRequest, "{}: want a model in safetensors, found GGUF", options.model.model);
  const ModelSource source = open_model(options.model, terminal);
  std::map<std::tuple<model::WeightRole, int>, const backend::HostWeight*> weights;
  for (const backend::HostWeight& weight : source.weights) weights[{weight.role, weight.layer}] = &weight;
  const convert::TensorSource stored = [&](const model::ManifestItem& item) {
    const backend::HostWeight& weight = *weights.at({item.role, item.layer});
    return item.part == model::Part::kValues ? weight.values : weight.scales;
  };
  ThreadPool pool(thread_count(options.model));
  write_gguf_model(source.config, tokenizer_parts(options.model), stored,
                   {.destination = options.destination,
                    .dense = options.dense,
                    .part_bytes = options.part_bytes,
                    .pool = &pool,
                    .json = options.output.json},
                   terminal);
  return kExitOk;
}

int execute(const QuantizeOptions& asked) {
  QuantizeOptions options = asked;
  Terminal terminal(options.output);
  options.input = path_of(asked.input, asked.hub);
  ThreadPool pool(thread_count({}));
  const convert::QuantizeOptions how{
      .format = format_of(options.format), .scale = options.scale, .name_glob = options.tensors, .pool = &pool};
  const bool directory = std::filesystem::is_directory(options.input);
  if (directory && !options.tensors.empty())
    throw Error(Code::kInvalidRequest,
                "--tensors: want a file as input, found the directory {}; its experts are what is quantised",
                options.input.string());
  nlohmann::ordered_json json = {{"format", options.format}, {"tensors", nlohmann::json::array()}};
  const Interrupt interrupt(kEndings);
  const auto on_tensor = [&](const convert::QuantizedTensor& t) {
    interrupt.throw_if_requested();
    json["tensors"].push_back({{"name", t.name},
                               {"shape", t.shape},
                               {"bytes_before", t.bytes_before},
                               {"bytes_after", t.bytes_after},
                               {"relative_rms_error", t.error.relative_rms()},
                               {"max_abs_error", t.error.max_abs},
                               {"clipped", t.error.clipped},
                               {"nan_blocks", t.error.nan_blocks}});
    if (options.output.json) return;
    terminal.print(fmt::format("{}  [{}]  {} → {}  rms error {:.4f}  largest {:.4g}  clipped {}{}\n", t.name,
                               fmt::join(t.shape, ","), format_bytes(static_cast<double>(t.bytes_before)),
                               format_bytes(static_cast<double>(t.bytes_after)), t.error.relative_rms(),
                               t.error.max_abs, t.error.clipped,
                               t.error.nan_blocks > 0 ? fmt::format("  NaN blocks {}", t.error.nan_blocks) : ""));
  };
  const auto convert = directory ? convert::quantize_checkpoint : convert::quantize_file;
  convert(options.input, options.destination, how, on_tensor);
  if (options.output.json) terminal.print_json(json);
  return kExitOk;
}

}  // namespace nibble::app
