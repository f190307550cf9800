#include "convert/quantize.h"

#include "backend/sliced_weight.h"
#include "base/error.h"
#include "base/mmap_file.h"
#include "base/read_json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/part_file.h"
#include "convert/synth.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <optional>

#include <fnmatch.h>

namespace nibble::convert {
namespace {

namespace fs = std::filesystem;
using checkpoint::TensorEntry;
using checkpoint::TensorSpec;

struct Source {
  const TensorEntry* entry = nullptr;
  std::string name;  // without _blocks and _scales
  Shape shape;       // logical: rows last but one, columns last
  bool transposed = false;

  [[nodiscard]] int64_t cols() const { return shape.back(); }
  [[nodiscard]] int64_t rows() const {
    return std::accumulate(shape.begin(), shape.end() - 1, int64_t{1}, std::multiplies<>());
  }
};

// Hugging Face keeps float experts as [experts, in, out]; MXFP4 wants [experts, out, in].
Source expert_source(const TensorEntry& entry) {
  const Shape& s = entry.tensor.shape;
  return {&entry, entry.name, {s[0], s[2], s[1]}, true};
}

Shape with_last(Shape shape, std::initializer_list<int64_t> last) {
  shape.pop_back();
  shape.insert(shape.end(), last);
  return shape;
}

enum class Want { kBlocks, kScales };

// Quantises all rows and keeps the blocks or the scales; both are asked for in turn by the writer.
MxError quantize_rows(const Source& source, const QuantizeOptions& options, Want want, std::span<std::byte> out) {
  const int64_t cols = source.cols(), blocks = cols / kMxBlock, block_bytes = mx_block_bytes(options.format);
  const int64_t per_expert = source.shape[source.shape.size() - 2];
  const backend::StoredRows stored{source.entry->tensor, per_expert, cols, source.transposed};
  const int64_t at_once = std::min(backend::kRowsAtOnce, per_expert), pieces = (per_expert + at_once - 1) / at_once;
  MxError total;
  std::mutex total_mutex;
  const auto run = [&](IndexRange range) {
    std::vector<float> values(static_cast<size_t>(at_once * cols));
    std::vector<uint8_t> elements(static_cast<size_t>(blocks * block_bytes)), scales(static_cast<size_t>(blocks));
    MxError error;
    for (int64_t piece = range.begin; piece < range.end; ++piece) {
      const int64_t first = piece / pieces * per_expert + piece % pieces * at_once;
      const int64_t rows = std::min(at_once, per_expert - piece % pieces * at_once);
      backend::read_rows(stored, first, std::span(values).first(static_cast<size_t>(rows * cols)));
      for (int64_t r = 0; r < rows; ++r) {
        const auto row = std::span(values).subspan(static_cast<size_t>(r * cols), static_cast<size_t>(cols));
        const MxBlocks made{options.format, elements, scales};
        mx_quantize(row, options.scale, made);
        if (want == Want::kBlocks) error.add(mx_error(row, made));
        const std::span<const uint8_t> kept = want == Want::kBlocks ? elements : scales;
        std::copy(kept.begin(), kept.end(),
                  reinterpret_cast<uint8_t*>(out.data()) + (first + r) * static_cast<int64_t>(kept.size()));
      }
    }
    const std::lock_guard lock(total_mutex);
    total.add(error);
  };
  parallel_for(options.pool, source.rows() / per_expert * pieces, run);
  return total;
}

// One output tensor: a copy, or one half of a quantised one.
struct Output {
  const TensorEntry* copied = nullptr;
  std::optional<Source> source{};
  Want want = Want::kBlocks;
};

// Writes `entries`, those that `pick` gives a source for as blocks and scales.
void convert(std::span<const TensorEntry> entries, const fs::path& output, const QuantizeOptions& options,
             const std::function<std::optional<Source>(const TensorEntry&)>& pick, const OnQuantized& on_tensor) {
  std::vector<TensorSpec> specs;
  std::vector<Output> outputs;
  for (const TensorEntry& entry : entries) {
    if (auto source = pick(entry)) {
      const int64_t blocks = source->cols() / kMxBlock;
      specs.push_back(
          {source->name + "_blocks", DType::kU8, with_last(source->shape, {blocks, mx_block_bytes(options.format)})});
      outputs.push_back({.source = source, .want = Want::kBlocks});
      specs.push_back({source->name + "_scales", DType::kU8, with_last(source->shape, {blocks})});
      outputs.push_back({.source = source, .want = Want::kScales});
    } else {
      specs.push_back({entry.name, entry.tensor.dtype, entry.tensor.shape});
      outputs.push_back({.copied = &entry});
    }
  }
  checkpoint::write_safetensors(
      output, {.tensors = specs, .metadata = {{"format", "pt"}}}, [&](const checkpoint::TensorPiece& piece) {
        const Output& o = outputs[piece.tensor_idx];
        if (o.copied != nullptr) {
          std::copy_n(o.copied->tensor.bytes.begin() + piece.offset_bytes, piece.bytes.size(), piece.bytes.begin());
          return;
        }
        const MxError error = quantize_rows(*o.source, options, o.want, piece.bytes);
        if (o.want == Want::kBlocks && on_tensor) {
          const auto scales = static_cast<int64_t>(o.source->rows() * o.source->cols() / kMxBlock);
          on_tensor({o.source->name, o.source->shape, static_cast<int64_t>(o.source->entry->tensor.bytes.size()),
                     static_cast<int64_t>(piece.bytes.size()) + scales, error});
        }
      });
}

bool is_float_expert(const TensorEntry& entry) {
  const bool named =
      entry.name.ends_with(".mlp.experts.gate_up_proj") || entry.name.ends_with(".mlp.experts.down_proj");
  return named && backend::is_float(entry.tensor.dtype);
}

Source checked_expert(const TensorEntry& entry) {
  const Shape& s = entry.tensor.shape;
  if (s.size() != 3 || s[1] % kMxBlock != 0)
    throw Error(Code::kCorrupt, "{}: want [experts, in, out] with in a multiple of 32, found {}", entry.name,
                checkpoint::describe(entry.tensor.dtype, s));
  return expert_source(entry);
}

constexpr int64_t kMaxConfigBytes = int64_t{1} << 24;

// config.json with what says that the experts are MXFP4 now.
std::string quantized_config(const fs::path& path) {
  auto json = read_ordered_json(read_text_file(path, kMaxConfigBytes));
  if (!json.is_object()) throw Error(Code::kCorrupt, "{}: want a JSON object", path.string());
  json["quantization_config"] = quantization_config();
  return json.dump(2) + "\n";
}

}  // namespace

void quantize_file(const fs::path& input, const fs::path& output, const QuantizeOptions& options,
                   const OnQuantized& on_tensor) {
  const checkpoint::SafetensorsFile file(input);
  const auto pick = [&](const TensorEntry& entry) -> std::optional<Source> {
    const Shape& shape = entry.tensor.shape;
    const bool fits = backend::is_float(entry.tensor.dtype) && shape.size() >= 2 && shape.back() % kMxBlock == 0 &&
                      !entry.tensor.bytes.empty();
    if (!fits ||
        (!options.name_glob.empty() && fnmatch(options.name_glob.c_str(), entry.name.c_str(), FNM_NOESCAPE) != 0))
      return std::nullopt;
    return Source{&entry, entry.name, shape};
  };
  if (std::none_of(file.entries().begin(), file.entries().end(),
                   [&](const TensorEntry& e) { return pick(e).has_value(); })) {
    throw Error(Code::kInvalidRequest,
                "{}: want a float tensor of rank 2 or more whose last dimension is a multiple of 32{}, "
                "found none among {}",
                input.string(), options.name_glob.empty() ? "" : " and whose name matches " + options.name_glob,
                file.entries().size());
  }
  convert(file.entries(), output, options, pick, on_tensor);
}

void quantize_checkpoint(const fs::path& input, const fs::path& output, const QuantizeOptions& options,
                         const OnQuantized& on_tensor) {
  if (options.format != MxFormat::kMxfp4)
    throw Error(Code::kInvalidRequest, "{}: want --format mxfp4 for a model's experts, found another", input.string());
  const checkpoint::Checkpoint source = checkpoint::Checkpoint::open(input);
  if (std::none_of(source.entries().begin(), source.entries().end(), is_float_expert))
    throw Error(Code::kInvalidRequest,
                "{}: want float experts (mlp.experts.gate_up_proj, down_proj), found none: they may be "
                "quantised already",
                input.string());
  const std::string config = quantized_config(source.directory() / "config.json");
  checkpoint::NewDirectory made(output);
  nlohmann::ordered_json weight_map;
  int64_t total_bytes = 0;
  for (const checkpoint::SafetensorsFile& file : source.files()) {
    const fs::path to = output / file.path().filename();
    convert(
        file.entries(), to, options,
        [](const TensorEntry& e) { return is_float_expert(e) ? std::optional(checked_expert(e)) : std::nullopt; },
        on_tensor);
    for (const checkpoint::SafetensorsFile written(to); const TensorEntry& entry : written.entries()) {
      weight_map[entry.name] = to.filename().string();
      total_bytes += static_cast<int64_t>(entry.tensor.bytes.size());
    }
  }
  if (source.files().size() > 1) made.write("model.safetensors.index.json", index_json(weight_map, total_bytes));
  made.write("config.json", config);
  for (const fs::directory_entry& entry : fs::directory_iterator(source.directory())) {
    const fs::path name = entry.path().filename();
    const bool rewritten =
        name.extension() == ".safetensors" || name == "config.json" || name == "model.safetensors.index.json";
    if (entry.is_regular_file() && !rewritten) fs::copy_file(entry.path(), output / name);
  }
  made.keep();
}

}  // namespace nibble::convert
