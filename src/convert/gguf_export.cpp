
#include "base/dtype.h"
#include "base/error.h"
#include "base/ggml_blocks.h"
#include "base/mx.h"
#include "checkpoint/gguf_checkpoint.h"
#include "convert/gguf.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <utility>

namespace nibble::convert {

using model::Half;
using model::manifest;
using model::Naming;
using model::Part;
using model::validate;
using model::WeightRole;
namespace {

namespace fs = std::filesystem;
using checkpoint::GgufEntry;
using checkpoint::tensor_bytes;
using checkpoint::TensorSpec;
using enum WeightRole;

constexpr int64_t kQ8Bytes = 34, kGgmlMxfp4Bytes = 17, kMxfp4Bytes = 16;

DType type_of(WeightRole role, DType dense) {
  if (!is_matrix(role) || role == kRouter) return DType::kF32;
  return has_experts(role) ? DType::kGgmlMxfp4 : dense;
}

// Where row r of the tensor lies in the stored one: gate has its even rows, up its odd ones.
struct Interleave {
  int64_t step = 1, first = 0;
  [[nodiscard]] int64_t operator()(int64_t row) const { return row * step + first; }
};

Interleave interleave_of(Half half) {
  return half == Half::kWhole ? Interleave{} : Interleave{.step = 2, .first = half == Half::kOdd ? 1 : 0};
}

// Elements 2j and 2j+1 share byte j in a checkpoint, j and j+16 in ggml.
void repack_mxfp4(const uint8_t* codes, uint8_t* out) {
  for (int j = 0; j < 16; ++j) {
    const int low = mx_element_code(MxFormat::kMxfp4, codes, j),
              high = mx_element_code(MxFormat::kMxfp4, codes, j + 16);
    out[j] = static_cast<uint8_t>(low | high << 4);
  }
}

class Exporter {
 public:
  Exporter(const ModelConfig& config, const TensorSource& source, ThreadPool* pool) : source_(source), pool_(pool) {
    for (ManifestItem& item : manifest(config, Naming::kHuggingFace))
      stored_.emplace(std::tuple(item.role, item.part, item.layer), std::move(item));
  }

  void fill(const ManifestItem& item, DType type, std::span<std::byte> out) const {
    if (type == DType::kGgmlMxfp4)
      fill_experts(item, out);
    else
      fill_floats(item, type, out);
  }

 private:
  [[nodiscard]] RawTensor stored(const ManifestItem& item, Part part) const {
    return source_(stored_.at({item.role, part, item.layer}));
  }

  void fill_experts(const ManifestItem& item, std::span<std::byte> out) const {
    const auto* codes = reinterpret_cast<const uint8_t*>(stored(item, Part::kValues).bytes.data());
    const auto* scales = reinterpret_cast<const uint8_t*>(stored(item, Part::kScales).bytes.data());
    auto* blocks = reinterpret_cast<uint8_t*>(out.data());
    const int64_t row_blocks = item.shape.back() / kMxBlock;
    const Interleave from = interleave_of(item.half);
    parallel_for(pool_, item.shape[0] * item.shape[1], [&](IndexRange rows) {
      for (int64_t b = rows.begin * row_blocks; b < rows.end * row_blocks; ++b) {
        const int64_t source = from(b / row_blocks) * row_blocks + b % row_blocks;
        blocks[b * kGgmlMxfp4Bytes] = scales[source];
        repack_mxfp4(codes + source * kMxfp4Bytes, blocks + b * kGgmlMxfp4Bytes + 1);
      }
    });
  }

  // From any floats. A tensor whose last dimension was interleaved (the biases of gate and up) is a column of its rows.
  void fill_floats(const ManifestItem& item, DType type, std::span<std::byte> out) const {
    const RawTensor values = stored(item, Part::kValues);
    const Interleave from = interleave_of(item.half);
    int64_t count = 1;
    for (const int64_t d : item.shape) count *= d;
    std::atomic<bool> overflows = false;
    parallel_for(pool_, count / kMxBlock + 1, [&](IndexRange blocks) {
      float block[kMxBlock];
      for (int64_t i = blocks.begin * kMxBlock; i < std::min(blocks.end * kMxBlock, count); i += kMxBlock) {
        const auto some = std::span(block).first(static_cast<size_t>(std::min<int64_t>(kMxBlock, count - i)));
        for (size_t j = 0; j < some.size(); ++j) some[j] = backend::float_at(values, from(i + static_cast<int64_t>(j)));
        if (!store(some, type, out, i)) overflows = true;
      }
    });
    if (overflows)
      throw Error(Code::kUnsupported, "{}: want values and scales within F16's range for {}, found larger ones",
                  item.name, name_of(type));
  }

  // Values [first, …) of a tensor; false where F16 has no room for one.
  static bool store(std::span<const float> values, DType type, std::span<std::byte> out, int64_t first) {
    if (type == DType::kGgmlQ8) {
      const auto block = out.subspan(static_cast<size_t>(first / kMxBlock * kQ8Bytes), kQ8Bytes);
      quantize_ggml_q8(values, block);
      return (block[1] & std::byte{0x7c}) != std::byte{0x7c};
    }
    bool fits = true;
    std::byte* at = out.data() + first * bytes_of(type);
    for (const float value : values) {
      if (type == DType::kF32) std::memcpy(at, &value, sizeof value);
      const uint16_t bits = type == DType::kF16 ? F16::from_float(value).bits : Bf16::from_float(value).bits;
      if (type != DType::kF32) std::memcpy(at, &bits, sizeof bits);
      fits &= type != DType::kF16 || (bits & 0x7c00) != 0x7c00;
      at += bytes_of(type);
    }
    return fits;
  }

  const TensorSource& source_;
  ThreadPool* pool_;
  std::map<std::tuple<WeightRole, Part, int>, ManifestItem> stored_;
};

struct PartOfModel {
  fs::path path;
  std::vector<ManifestItem> items;
  std::vector<TensorSpec> specs;
};

std::vector<PartOfModel> parts_of(const ModelConfig& config, const fs::path& path, const GgufExport& options) {
  std::vector<PartOfModel> parts(1);
  int64_t bytes = 0;
  for (ManifestItem& item : manifest(config, Naming::kGguf)) {
    const TensorSpec spec{item.name, type_of(item.role, options.dense), item.shape};
    if (spec.dtype == DType::kGgmlQ8 && spec.shape.back() % kMxBlock != 0)
      throw Error(Code::kUnsupported,
                  "{}: want rows of whole blocks of {} values for {}, found {}: bf16, f16 and f32 hold any", spec.name,
                  kMxBlock, name_of(spec.dtype), spec.shape.back());
    const int64_t more = tensor_bytes(spec.dtype, spec.shape, spec.name);
    if (options.part_bytes > 0 && !parts.back().items.empty() && bytes + more > options.part_bytes) {
      parts.emplace_back();
      bytes = 0;
    }
    bytes += more;
    parts.back().specs.push_back(spec);
    parts.back().items.push_back(std::move(item));
  }
  fs::path stem = path;
  if (stem.extension() == ".gguf") stem.replace_extension();
  const auto count = static_cast<int64_t>(parts.size());
  for (int64_t i = 0; i < count; ++i)
    parts[static_cast<size_t>(i)].path = count == 1 ? path : checkpoint::gguf_part_path(stem, i, count);
  return parts;
}

std::vector<GgufEntry> metadata_of(const ModelConfig& config, const GgufExport& options, size_t part,
                                   const std::vector<PartOfModel>& parts) {
  std::vector<GgufEntry> entries;
  if (part == 0) {
    entries = gguf_entries(config);
    if (config.bos_id) entries.push_back({"tokenizer.ggml.bos_token_id", static_cast<uint32_t>(*config.bos_id)});
    if (config.pad_id) entries.push_back({"tokenizer.ggml.padding_token_id", static_cast<uint32_t>(*config.pad_id)});
    if (!config.eos_ids.empty())
      entries.push_back({"tokenizer.ggml.eos_token_id", static_cast<uint32_t>(config.eos_ids.front())});
    entries.insert(entries.end(), options.tokenizer.begin(), options.tokenizer.end());
  }
  if (parts.size() > 1) {
    size_t tensors = 0;
    for (const PartOfModel& p : parts) tensors += p.items.size();
    entries.push_back({"split.no", static_cast<uint16_t>(part)});
    entries.push_back({"split.count", static_cast<uint16_t>(parts.size())});
    entries.push_back({"split.tensors.count", static_cast<int32_t>(tensors)});
  }
  return entries;
}

// The files of a model, gone again unless all were written.
struct OutputFiles {
  std::vector<fs::path> files;
  bool whole = false;
  ~OutputFiles() {
    std::error_code ignored;
    for (const fs::path& file : files)
      if (!whole) fs::remove(file, ignored);
  }
};

// What lies there may be a shard of the model that is read.
void check_replaceable(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored) || fs::file_size(path, ignored) == 0) return;
  if (checkpoint::begins_as_gguf(path)) return;
  throw Error(Code::kInvalidRequest, "{}: want a new name, or a GGUF file to replace, found another file",
              path.string());
}

}  // namespace

std::vector<fs::path> export_gguf(const ModelConfig& config, const TensorSource& source, const fs::path& path,
                                  const GgufExport& options,
                                  const std::function<void(const ExportProgress&)>& progress) {
  validate(config);
  if (options.part_bytes < 0)
    throw Error(Code::kInvalidRequest, "--part-bytes: want 0 or more, found {}", options.part_bytes);
  check(options.dense != DType::kGgmlMxfp4, "dense matrices are not requantised to MXFP4 here");
  const Exporter exporter(config, source, options.pool);
  const std::vector<PartOfModel> parts = parts_of(config, path, options);
  if (parts.size() > UINT16_MAX)
    throw Error(Code::kInvalidRequest, "--part-bytes: want at most {} parts, found {}", UINT16_MAX, parts.size());
  ExportProgress state;
  for (const PartOfModel& part : parts)
    for (const TensorSpec& spec : part.specs) state.total_bytes += tensor_bytes(spec.dtype, spec.shape, spec.name);
  for (const PartOfModel& part : parts) check_replaceable(part.path);
  OutputFiles written;
  for (size_t p = 0; p < parts.size(); ++p) {
    const PartOfModel& part = parts[p];
    const std::vector<GgufEntry> metadata = metadata_of(config, options, p, parts);
    const std::string file = part.path.filename().string();
    state.file = file;
    checkpoint::write_gguf(part.path, {.metadata = metadata, .tensors = part.specs},
                           [&](size_t idx, std::span<std::byte> bytes) {
                             exporter.fill(part.items[idx], part.specs[idx].dtype, bytes);
                             state.done_bytes += static_cast<int64_t>(bytes.size());
                             if (progress) progress(state);
                           });
    written.files.push_back(part.path);
  }
  written.whole = true;
  return written.files;
}

}  // namespace nibble::convert
