#include "base/dtype.h"
#include "base/ggml_blocks.h"
#include "base/mmap_file.h"
#include "base/mx.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

namespace nibble {
namespace {

// Those of llama.cpp.
std::vector<DType> block_types() {
  std::vector<DType> types;
  for (size_t i = 0; i < std::size(kDTypes); ++i)
    if (kDTypes[i].values > 1 && static_cast<DType>(i) != DType::kOllamaMxfp4) types.push_back(static_cast<DType>(i));
  return types;
}

std::vector<std::byte> from_hex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

// FNV-1a over the bytes of the values, with negative zeros made positive, as in tools/make_gguf_goldens.py.
std::string hash_of(std::span<const float> values) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const float value : values) {
    const auto bits = std::bit_cast<uint32_t>(value + 0.0f);
    for (int byte = 0; byte < 4; ++byte) hash = (hash ^ (bits >> (8 * byte) & 255)) * 0x100000001b3u;
  }
  return fmt::format("{:016x}", hash);
}

struct Blocks {
  std::vector<std::byte> bytes;
  std::string hash;
  float first;
};

Blocks golden(DType type) {
  static const auto all = nlohmann::json::parse(
      read_text_file(std::filesystem::path(NIBBLE_SOURCE_DIR) / "tests/data/ggml_blocks.json", 1 << 20));
  const auto& of = all.at(std::string(name_of(type)));
  return {from_hex(of.at("blocks")), of.at("fnv1a"), of.at("first")};
}

std::vector<float> decoded(DType type, std::span<const std::byte> blocks) {
  const DTypeInfo& info = info_of(type);
  std::vector<float> values(blocks.size() / static_cast<size_t>(info.bytes) * static_cast<size_t>(info.values));
  ggml_decode(type, blocks, values);
  return values;
}

TEST(ggml_blocks, every_value_is_what_the_python_package_reads) {
  ASSERT_EQ(block_types().size(), 13u);
  for (const DType type : block_types()) {
    const Blocks blocks = golden(type);
    const std::vector<float> values = decoded(type, blocks.bytes);
    EXPECT_EQ(values.size(), 512u) << name_of(type);
    EXPECT_EQ(values.front(), blocks.first) << name_of(type);
    EXPECT_EQ(hash_of(values), blocks.hash) << name_of(type);
  }
}

TEST(ggml_blocks, those_that_another_type_holds_lose_nothing_in_it) {
  int exact = 0;
  for (const DType type : block_types()) {
    const auto to = exact_type(type);
    if (!to) continue;
    ++exact;
    const Blocks blocks = golden(type);
    std::vector<std::byte> copy(static_cast<size_t>(512 / 32 * bytes_of(*to)));
    ggml_copy_exactly(type, blocks.bytes, copy);
    EXPECT_EQ(decoded(*to, copy), decoded(type, blocks.bytes)) << name_of(type);
  }
  EXPECT_EQ(exact, 3);  // Q4_0, Q5_0, IQ4_NL
}

// The order of OpenAI's files, whose decoder is another one.
TEST(ggml_blocks, ollamas_mxfp4_holds_neighbours_in_a_byte) {
  std::vector<std::byte> blocks(17 * 4);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::byte>(i % 17 == 0 ? 120 + i : 37 * i + 11);
  std::vector<float> want(128);
  for (size_t b = 0; b < 4; ++b) {
    const auto* const block = reinterpret_cast<const uint8_t*>(blocks.data()) + 17 * b;
    mx_dequantize({MxFormat::kMxfp4, {block + 1, 16}, {block, 1}}, std::span(want).subspan(32 * b, 32));
  }
  EXPECT_EQ(decoded(DType::kOllamaMxfp4, blocks), want);
  std::vector<std::byte> copy(blocks.size());
  ggml_copy_exactly(DType::kOllamaMxfp4, blocks, copy);
  EXPECT_EQ(decoded(DType::kGgmlMxfp4, copy), want);
  EXPECT_NE(copy, blocks);
}

// A scale of NaN makes some value of its block NaN, and no other block's.
TEST(ggml_blocks, scales_lie_where_they_are_said_to_lie) {
  for (const DType type : block_types()) {
    const DTypeInfo& info = info_of(type);
    const GgmlScales scales = ggml_scales(type);
    EXPECT_EQ(scales.count == 0, type == DType::kGgmlMxfp4) << name_of(type);
    for (int64_t i = 0; i < scales.count; ++i) {
      std::vector<std::byte> bytes = golden(type).bytes;
      bytes[static_cast<size_t>(info.bytes + scales.first + 2 * i)] = std::byte{1};
      bytes[static_cast<size_t>(info.bytes + scales.first + 2 * i + 1)] = std::byte{0x7c};
      const std::vector<float> values = decoded(type, bytes);
      const auto is_nan = [](float x) { return std::isnan(x); };
      const auto second = values.begin() + info.values, third = second + info.values;
      EXPECT_TRUE(std::none_of(values.begin(), second, is_nan) && std::any_of(second, third, is_nan) &&
                  std::none_of(third, values.end(), is_nan))
          << name_of(type) << " " << i;
    }
  }
}

}  // namespace
}  // namespace nibble
