#include "base/error.h"
#include "checkpoint/part_file.h"
#include "checkpoint/safetensors.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace nibble::checkpoint {
namespace {

constexpr size_t kHeaderAlignment = 8;  // safetensors README: the data part begins on a multiple of 8

// Tensor indices in file order. Larger elements first keeps every tensor aligned without holes.
std::vector<size_t> file_order(std::span<const TensorSpec> tensors) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto place = [&](size_t idx) { return std::pair(-bytes_of(tensors[idx].dtype), idx); };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return place(a) < place(b); });
  return order;
}

std::vector<int64_t> checked_sizes(std::span<const TensorSpec> tensors, const std::string& where) {
  std::set<std::string_view> names;
  std::vector<int64_t> sizes;
  int64_t total = 0;
  for (const TensorSpec& t : tensors) {
    if (t.name == "__metadata__" || !names.insert(t.name).second) {
      throw Error(Code::kInvalidRequest, "{}: tensor name {} is reserved or given twice", where, t.name);
    }
    try {
      sizes.push_back(tensor_bytes(t.dtype, t.shape, where));
    } catch (const Error& e) {
      throw Error(Code::kInvalidRequest, std::string(e.what()));
    }
    if (__builtin_add_overflow(total, sizes.back(), &total)) {
      throw Error(Code::kInvalidRequest, "{}: the tensors' bytes overflow 63 bits", where);
    }
  }
  return sizes;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const SafetensorsPlan& plan,
                       const std::function<void(const TensorPiece&)>& fill) {
  check(plan.piece_bytes > 0, "a piece has bytes");
  const std::vector<int64_t> sizes = checked_sizes(plan.tensors, path.string());
  const std::vector<size_t> order = file_order(plan.tensors);

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!plan.metadata.empty()) header["__metadata__"] = plan.metadata;
  int64_t at = 0;
  for (const size_t idx : order) {
    const TensorSpec& t = plan.tensors[idx];
    header[t.name] = {{"dtype", name_of(t.dtype)}, {"shape", t.shape}, {"data_offsets", {at, at + sizes[idx]}}};
    at += sizes[idx];
  }
  std::string text = header.dump();
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');

  PartFile file(path);
  const uint64_t header_bytes = text.size();
  file.append(std::as_bytes(std::span(&header_bytes, 1)));
  file.append(std::as_bytes(std::span(text)));
  std::vector<std::byte> piece;
  for (const size_t idx : order) {
    for (int64_t offset = 0; offset < sizes[idx]; offset += plan.piece_bytes) {
      piece.resize(static_cast<size_t>(std::min(plan.piece_bytes, sizes[idx] - offset)));
      fill({.tensor_idx = idx, .offset_bytes = offset, .bytes = piece});
      file.append(piece);
    }
  }
  file.commit();
}

}  // namespace nibble::checkpoint
