#pragma once
// ggml's block types from floats: plain roundings, not as good as llama.cpp's own quantiser, in the layouts that
// base/ggml_blocks.h reads.

#include "base/dtype.h"
#include "base/ggml_blocks.h"
#include "base/mx.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

namespace nibble::test {

inline void put_f16(uint8_t* at, float value) {
  const uint16_t bits = F16::from_float(value).bits;
  std::memcpy(at, &bits, sizeof bits);
}
inline float rounded_f16(float value) { return F16::from_float(value).to_float(); }
inline int code_of(float x, float scale, int least, int most) {
  return scale == 0 ? std::clamp(0, least, most) : std::clamp(static_cast<int>(std::lround(x / scale)), least, most);
}
inline float largest_of(std::span<const float> x) {
  float largest = 0;
  for (const float v : x) largest = std::max(largest, std::fabs(v));
  return largest;
}
inline int nearest_iq4(float x) {
  constexpr int kValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  int best = 0;
  for (int i = 1; i < 16; ++i)
    if (std::fabs(x - static_cast<float>(kValues[i])) < std::fabs(x - static_cast<float>(kValues[best]))) best = i;
  return best;
}
inline void or_nibble(uint8_t* codes, int j, int code) {
  codes[j % 16] = static_cast<uint8_t>(codes[j % 16] | code << (j < 16 ? 0 : 4));
}

inline void encode_small(DType type, std::span<const float> x, uint8_t* out) {
  const bool has_min = type == DType::kGgmlQ41 || type == DType::kGgmlQ51;
  const bool five = type == DType::kGgmlQ50 || type == DType::kGgmlQ51;
  const int half = five ? 16 : 8, most = 2 * half - 1;
  const float least = *std::ranges::min_element(x), top = *std::ranges::max_element(x);
  float d = has_min ? (top - least) / static_cast<float>(most) : largest_of(x) / static_cast<float>(half - 1);
  if (type == DType::kGgmlIq4Nl) d = largest_of(x) / 113;
  d = rounded_f16(d);
  put_f16(out, d);
  if (has_min) put_f16(out + 2, least);
  uint8_t* const high = out + (has_min ? 4 : 2);
  uint8_t* const codes = high + (five ? 4 : 0);
  for (int j = 0; j < 32; ++j) {
    const float v = x[static_cast<size_t>(j)];
    int code = has_min ? code_of(v - rounded_f16(least), d, 0, most) : code_of(v, d, -half, half - 1) + half;
    if (type == DType::kGgmlIq4Nl) code = d == 0 ? 8 : nearest_iq4(v / d);
    or_nibble(codes, j, code & 15);
    if (five) high[j / 8] = static_cast<uint8_t>(high[j / 8] | (code >> 4) << (j % 8));
  }
}

inline void encode_large(DType type, std::span<const float> x, uint8_t* b) {
  using enum DType;
  const bool mins = type == kGgmlQ2K || type == kGgmlQ4K || type == kGgmlQ5K;
  const int group = type == kGgmlQ2K || type == kGgmlQ3K || type == kGgmlQ6K ? 16 : 32, groups = 256 / group;
  const int most = type == kGgmlQ2K ? 3 : type == kGgmlQ4K ? 15 : type == kGgmlQ5K ? 31 : 0;  // codes, with minima
  const int scales = type == kGgmlQ2K ? 15 : mins ? 63 : type == kGgmlQ6K ? 127 : 31;
  const float unit = type == kGgmlQ3K ? 3 : type == kGgmlQ6K ? 31 : 113;  // the largest code, without
  std::array<float, 16> scale{}, min{};
  for (int g = 0; g < groups; ++g) {
    const auto some = x.subspan(static_cast<size_t>(g * group), static_cast<size_t>(group));
    const auto at = static_cast<size_t>(g);
    min[at] = std::max(0.0f, -*std::ranges::min_element(some));
    scale[at] = mins ? std::max(0.0f, *std::ranges::max_element(some) + min[at]) / static_cast<float>(most)
                     : largest_of(some) / unit;
  }
  const float d = rounded_f16(largest_of(scale) / static_cast<float>(scales)),
              dmin = rounded_f16(largest_of(min) / static_cast<float>(scales));
  std::array<int, 16> ls{}, lm{};
  for (size_t g = 0; g < 16; ++g) ls[g] = code_of(scale[g], d, 0, scales), lm[g] = code_of(min[g], dmin, 0, scales);
  const auto put = [](uint8_t& to, int bits) { to = static_cast<uint8_t>(to | bits); };
  if (mins) {
    uint8_t* const place = type == kGgmlQ2K ? b + 80 : b;
    put_f16(place, d);
    put_f16(place + 2, dmin);
  } else {
    put_f16(b + (type == kGgmlQ3K ? 108 : type == kGgmlQ6K ? 208 : 0), d);
  }
  for (int g = 0; g < groups; ++g) {
    const int s = ls[static_cast<size_t>(g)], m = lm[static_cast<size_t>(g)];
    switch (type) {
      case kGgmlQ2K: put(b[g], s | m << 4); break;
      case kGgmlQ6K: b[192 + g] = static_cast<uint8_t>(s); break;
      case kGgmlQ3K:
        put(b[96 + g % 8], ((s + 32) & 15) << (g < 8 ? 0 : 4));
        put(b[104 + g % 4], (s + 32) >> 4 << (g / 4 * 2));
        break;
      case kGgmlIq4Xs:
        put(b[4 + g / 2], ((s + 32) & 15) << (g % 2 * 4));
        put(b[2 + g / 4], (s + 32) >> 4 << (g % 4 * 2));
        break;
      default:  // Q4_K, Q5_K
        if (g < 4)
          put(b[4 + g], s), put(b[8 + g], m);
        else
          put(b[8 + g], (s & 15) | (m & 15) << 4), put(b[g], s >> 4 << 6), put(b[4 + g], m >> 4 << 6);
    }
  }
  for (int i = 0; i < 256; ++i) {
    const auto g = static_cast<size_t>(i / group);
    const float v = x[static_cast<size_t>(i)], step = d * static_cast<float>(ls[g]);
    const int part = i % 128 / 32, byte = i / 128 * 32 + i % 32;
    if (type == kGgmlIq4Xs) {
      or_nibble(b + 8 + i / 32 * 16, i % 32, step == 0 ? 8 : nearest_iq4(v / step));
      continue;
    }
    const int zero = type == kGgmlQ3K ? 4 : type == kGgmlQ6K ? 32 : 0;
    const int code = zero > 0 ? code_of(v, step, -zero, zero - 1) + zero
                              : code_of(v + dmin * static_cast<float>(lm[g]), step, 0, most);
    switch (type) {
      case kGgmlQ2K: put(b[16 + byte], code << (2 * part)); break;
      case kGgmlQ3K:
        put(b[32 + byte], (code & 3) << (2 * part));
        put(b[i % 32], code >> 2 << (i / 32));
        break;
      case kGgmlQ6K:
        put(b[i / 128 * 64 + i % 64], (code & 15) << (i % 128 < 64 ? 0 : 4));
        put(b[128 + byte], code >> 4 << (2 * part));
        break;
      default:
        put(b[(type == kGgmlQ5K ? 48 : 16) + i / 64 * 32 + i % 32], (code & 15) << (i % 64 < 32 ? 0 : 4));
        if (type == kGgmlQ5K) put(b[16 + i % 32], code >> 4 << (i / 32));
    }
  }
}

// REQUIRES whole blocks of a type that backends do not read as it is.
inline std::vector<std::byte> ggml_encode(DType type, std::span<const float> values) {
  const DTypeInfo& info = info_of(type);
  const auto size = static_cast<size_t>(info.values);
  std::vector<std::byte> bytes(values.size() / size * static_cast<size_t>(info.bytes));
  auto* out = reinterpret_cast<uint8_t*>(bytes.data());
  for (size_t at = 0; at < values.size(); at += size, out += info.bytes)
    (info.values == 32 ? encode_small : encode_large)(type, values.subspan(at, size), out);
  return bytes;
}

}  // namespace nibble::test
