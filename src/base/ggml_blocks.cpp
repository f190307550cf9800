#include "base/ggml_blocks.h"

#include "base/dtype.h"
#include "base/error.h"
#include "base/mx.h"

#include <cmath>
#include <cstring>

namespace nibble {
namespace {

constexpr int kSmall = 32;                // values of a legacy block, and of most parts of a large one
constexpr int64_t kQ8Bytes = 34;          // of a block of Q8_0
constexpr int kQ4Zero = 8, kQ5Zero = 16;  // the codes of 0
// IQ4_NL's and IQ4_XS's values by code (ggml-common.h, kvalues_iq4nl).
constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

float f16_at(const uint8_t* at) {
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return F16{bits}.to_float();
}

uint32_t u32_at(const uint8_t* at) {
  uint32_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return bits;
}

// A nibble of 16 bytes: element j is the low one of byte j, element j + 16 the high one.
int nibble_of(const uint8_t* codes, int j) { return j < 16 ? codes[j] & 15 : codes[j - 16] >> 4; }
// A nibble of 16 bytes that hold neighbours: element j is the low one of byte j / 2 where j is even, else the high one.
int pair_nibble_of(const uint8_t* codes, int j) { return codes[j / 2] >> (j % 2 * 4) & 15; }

// The five bits of Q5_0 and Q5_1: a nibble, and bit j of the word before.
int five_bits(const uint8_t* block, int j) {
  return nibble_of(block + 4, j) | static_cast<int>(u32_at(block) >> j & 1) << 4;
}

// Six-bit scale and minimum `part` of 8 in 12 bytes (get_scale_min_k4).
struct ScaleMin {
  int scale, min;
};
ScaleMin scale_min(const uint8_t* packed, int part) {
  if (part < 4) return {packed[part] & 63, packed[part + 4] & 63};
  return {(packed[part + 4] & 15) | packed[part - 4] >> 6 << 4, packed[part + 4] >> 4 | packed[part] >> 6 << 4};
}

// Six-bit scale `part` of Q3_K's 16: a nibble of the first 8 bytes, two bits of the last 4.
int q3_scale(const uint8_t* packed, int part) {
  const int low = part < 8 ? packed[part] & 15 : packed[part - 8] >> 4;
  return (low | (packed[8 + part % 4] >> (part / 4 * 2) & 3) << 4) - 32;
}

// Element i of a block of 256 whose codes have two bits: halves of 128 take 32 bytes each, byte l holding elements
// l, l + 32, l + 64 and l + 96.
int two_bits(const uint8_t* codes, int i) { return codes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3; }

// Element i of Q4_K's and Q5_K's nibbles: 64 take 32 bytes, the first 32 the low nibbles.
int k_nibble(const uint8_t* codes, int i) {
  const uint8_t byte = codes[i / 64 * 32 + i % 32];
  return i % 64 < 32 ? byte & 15 : byte >> 4;
}

// Values times the scale of a block that Q8_0 holds exactly.
int exact_code(DType type, const uint8_t* block, int j) {
  switch (type) {
    case DType::kGgmlQ40: return nibble_of(block + 2, j) - kQ4Zero;
    case DType::kGgmlQ50: return five_bits(block + 2, j) - kQ5Zero;
    case DType::kGgmlIq4Nl: return kIq4Values[nibble_of(block + 2, j)];
    default: return static_cast<int8_t>(block[2 + j]);  // Q8_0
  }
}

void decode_small(DType type, const uint8_t* block, float* out) {
  const float d = f16_at(block);
  if (type == DType::kGgmlMxfp4 || type == DType::kOllamaMxfp4) {
    const float scale = E8m0{block[0]}.to_float();
    const auto& code = type == DType::kGgmlMxfp4 ? nibble_of : pair_nibble_of;
    for (int j = 0; j < kSmall; ++j) out[j] = E2m1{static_cast<uint8_t>(code(block + 1, j))}.to_float() * scale;
  } else if (type == DType::kGgmlQ41 || type == DType::kGgmlQ51) {
    const float min = f16_at(block + 2);
    for (int j = 0; j < kSmall; ++j) {
      const int code = type == DType::kGgmlQ41 ? nibble_of(block + 4, j) : five_bits(block + 4, j);
      out[j] = d * static_cast<float>(code) + min;
    }
  } else {
    for (int j = 0; j < kSmall; ++j) out[j] = d * static_cast<float>(exact_code(type, block, j));
  }
}

void decode_large(DType type, const uint8_t* b, float* out) {
  const int values = static_cast<int>(info_of(type).values);
  for (int i = 0; i < values; ++i) {
    switch (type) {
      case DType::kGgmlQ2K: {  // scales and minima [16], codes [64], d, dmin
        const uint8_t packed = b[i / 16];
        out[i] = f16_at(b + 80) * static_cast<float>(packed & 15) * static_cast<float>(two_bits(b + 16, i)) -
                 f16_at(b + 82) * static_cast<float>(packed >> 4);
        break;
      }
      case DType::kGgmlQ3K: {  // high bits [32], codes [64], scales [12], d
        const int high = b[i % 32] >> (i / 32) & 1;
        out[i] = f16_at(b + 108) * static_cast<float>(q3_scale(b + 96, i / 16)) *
                 static_cast<float>(two_bits(b + 32, i) - (high != 0 ? 0 : 4));
        break;
      }
      case DType::kGgmlQ4K:    // d, dmin, scales [12], codes [128]
      case DType::kGgmlQ5K: {  // d, dmin, scales [12], high bits [32], codes [128]
        const bool five = type == DType::kGgmlQ5K;
        const ScaleMin part = scale_min(b + 4, i / 32);
        const int code = k_nibble(b + (five ? 48 : 16), i) | (five ? (b[16 + i % 32] >> (i / 32) & 1) << 4 : 0);
        out[i] = f16_at(b) * static_cast<float>(part.scale) * static_cast<float>(code) -
                 f16_at(b + 2) * static_cast<float>(part.min);
        break;
      }
      case DType::kGgmlQ6K: {  // low bits [128], high bits [64], signed scales [16], d
        const int half = i / 128, in_half = i % 128;
        const uint8_t low = b[half * 64 + in_half % 64];
        const int code = (in_half < 64 ? low & 15 : low >> 4) | two_bits(b + 128, i) << 4;
        out[i] =
            f16_at(b + 208) * static_cast<float>(static_cast<int8_t>(b[192 + i / 16])) * static_cast<float>(code - 32);
        break;
      }
      default: {  // IQ4_XS: d, high bits of scales [2], low ones [4], codes [128]
        const int part = i / 32;
        const int low = b[4 + part / 2] >> (part % 2 * 4) & 15, high = (b[2] | b[3] << 8) >> (2 * part) & 3;
        out[i] = f16_at(b) * static_cast<float>((low | high << 4) - 32) *
                 static_cast<float>(kIq4Values[nibble_of(b + 8 + part * 16, i % 32)]);
      }
    }
  }
}

}  // namespace

void ggml_decode(DType type, std::span<const std::byte> blocks, std::span<float> values) {
  const DTypeInfo& info = info_of(type);
  check(info.values > 1 && std::ssize(blocks) * info.values == std::ssize(values) * info.bytes, "whole blocks");
  const auto* block = reinterpret_cast<const uint8_t*>(blocks.data());
  for (float *out = values.data(), *end = out + values.size(); out < end; out += info.values, block += info.bytes)
    info.values == kSmall ? decode_small(type, block, out) : decode_large(type, block, out);
}

std::optional<DType> exact_type(DType type) {
  if (type == DType::kOllamaMxfp4) return DType::kGgmlMxfp4;
  const bool in_q8 = type == DType::kGgmlQ40 || type == DType::kGgmlQ50 || type == DType::kGgmlIq4Nl;
  return in_q8 ? std::optional(DType::kGgmlQ8) : std::nullopt;
}

void ggml_copy_exactly(DType type, std::span<const std::byte> blocks, std::span<std::byte> out) {
  const int64_t bytes = bytes_of(type), out_bytes = bytes_of(exact_type(type).value());
  check(std::ssize(blocks) * out_bytes == std::ssize(out) * bytes, "whole blocks");
  const auto* block = reinterpret_cast<const uint8_t*>(blocks.data());
  for (std::byte *to = out.data(), *end = to + out.size(); to < end; to += out_bytes, block += bytes) {
    if (type == DType::kOllamaMxfp4) {
      to[0] = std::byte{block[0]};
      for (int j = 0; j < kSmall / 2; ++j)
        to[1 + j] = static_cast<std::byte>(pair_nibble_of(block + 1, j) | pair_nibble_of(block + 1, j + 16) << 4);
    } else {
      std::memcpy(to, block, 2);
      for (int j = 0; j < kSmall; ++j) to[2 + j] = static_cast<std::byte>(exact_code(type, block, j));
    }
  }
}

void quantize_ggml_q8(std::span<const float> values, std::span<std::byte> blocks) {
  check(values.size() % kSmall == 0 && std::ssize(blocks) * kSmall == std::ssize(values) * kQ8Bytes, "whole blocks");
  for (size_t b = 0; b * kSmall < values.size(); ++b) {
    const auto some = values.subspan(b * kSmall, kSmall);
    std::byte* out = blocks.data() + b * kQ8Bytes;
    float largest = 0;
    for (const float x : some) {  // a value that is no number makes the scale none
      if (!(std::fabs(x) <= largest)) largest = std::fabs(x);
      if (std::isnan(largest)) break;
    }
    const float scale = largest / 127;
    const uint16_t bits = F16::from_float(scale).bits;
    std::memcpy(out, &bits, sizeof bits);
    const float inverse = std::isfinite(scale) && std::isfinite(1 / scale) ? 1 / scale : 0;
    for (size_t j = 0; j < kSmall; ++j)
      out[2 + j] = static_cast<std::byte>(inverse == 0 ? 0 : static_cast<int>(std::round(some[j] * inverse)));
  }
}

GgmlScales ggml_scales(DType type) {
  switch (type) {
    case DType::kGgmlQ2K: return {80, 2};
    case DType::kGgmlQ3K: return {108, 1};
    case DType::kGgmlQ6K: return {208, 1};
    case DType::kGgmlQ41:
    case DType::kGgmlQ51:
    case DType::kGgmlQ4K:
    case DType::kGgmlQ5K: return {0, 2};
    case DType::kGgmlMxfp4:
    case DType::kOllamaMxfp4: return {};
    default: return info_of(type).values > 1 ? GgmlScales{0, 1} : GgmlScales{};
  }
}

}  // namespace nibble
