// What is proved of the maps of this folder while they are compiled.

#include "backend/cuda/layout/mma_fragments.h"
#include "backend/cuda/layout/mx_a_m16k32.h"
#include "backend/cuda/layout/mx_b_n8k64.h"
#include "backend/cuda/layout/packed.h"
#include "backend/cuda/layout/screen_codes.h"
#include "backend/cuda/layout/small_floats.h"
#include "backend/cuda/layout/wgmma_b.h"

#include <cstdint>

namespace nibble::backend::cuda::layout::proof {

// small_floats.h

constexpr bool nibbles_are_codes() {
  for (uint32_t low = 0; low < 16; ++low)
    for (uint32_t high = 0; high < 16; ++high)
      for (int byte = 0; byte < 4; ++byte) {
        const uint32_t wide = half_of_code(low) >> 8 << 8 * byte, other = half_of_code(high) >> 8 << 8 * byte;
        if (nibbles_of(wide, other) != (low | high << 4) << 8 * byte) return false;
      }
  return true;
}
constexpr bool registers_are_the_pairs() {
  for (uint32_t n = 0; n < 4096; ++n) {
    const uint32_t w = n < 32 ? 1u << n : n * 2654435761u;
    const E2m1Pairs pairs = widen_e2m1x8(w);
    const E5m2Registers registers = e5m2_of_e2m1x8(w);
    for (int row = 0; row < 2; ++row)
      if (registers.row[row] != (pairs.pair[row] >> 8 | pairs.pair[2 + row])) return false;
  }
  return true;
}
constexpr bool codes_are_e5m2() {
  for (uint32_t code = 0; code < 16; ++code) {
    const E5m2 wide{static_cast<uint8_t>(half_of_code(code) >> 8)};
    const float value = E2m1{static_cast<uint8_t>(code)}.to_float();
    if (wide.to_float() != value * 0x1p-14f) return false;
  }
  return true;
}
static_assert(kE2m1AsF16Log2 == -14 && registers_are_the_pairs() && codes_are_e5m2() && nibbles_are_codes());

// mma_fragments.h

// Every element of `lines` x k once, and the way back.
template <class Element, class Place>
constexpr bool mx_bijective(const MxShape& s, int lines, int registers, Element element_of, Place place_of) {
  bool seen[16][64] = {};
  for (int lane = 0; lane < kWarpLanes; ++lane)
    for (int reg = 0; reg < registers; ++reg)
      for (int at = 0; at < s.per_register; ++at) {
        const MxElement e = element_of(s, MxPlace{lane, reg, at});
        if (e.line < 0 || e.line >= lines || e.k < 0 || e.k >= s.k || seen[e.line][e.k]) return false;
        if (!(place_of(s, e) == MxPlace{lane, reg, at})) return false;
        seen[e.line][e.k] = true;
      }
  return kWarpLanes * registers * s.per_register == lines * s.k;
}
static_assert(mx_bijective(kMxK32, 16, 4, mx_a_element, mx_a_place));
static_assert(mx_bijective(kMxK32, 8, 2, mx_b_element, mx_b_place));
static_assert(mx_bijective(kMxK64, 16, 4, mx_a_element, mx_a_place));
static_assert(mx_bijective(kMxK64, 8, 2, mx_b_element, mx_b_place));

constexpr bool results_bijective() {
  bool seen[16][8] = {};
  for (int lane = 0; lane < kWarpLanes; ++lane)
    for (int reg = 0; reg < 4; ++reg) {
      bool& place = seen[d_row(lane, reg)][d_col(lane, reg)];
      if (place) return false;
      place = true;
    }
  return true;
}
constexpr bool scale_lanes_differ() {
  uint32_t a = 0, b = 0;
  for (int row = 0; row < 16; ++row) a |= 1u << scale_lane_a(row);
  for (int col = 0; col < 8; ++col) b |= 1u << scale_lane_b(col);
  return a == 0x33333333u && b == 0x11111111u;  // lanes 0 and 1 of each quad; lane 0
}
static_assert(results_bijective() && scale_lanes_differ());

constexpr bool codes_fit_containers(MxFormat format) {
  for (int code = 0; code < 1 << mx_element_bits(format); ++code)
    if (code_in(format, container_of(format, static_cast<uint8_t>(code))) != code) return false;
  return true;
}
static_assert(codes_fit_containers(MxFormat::kMxfp4) && codes_fit_containers(MxFormat::kMxfp8E4m3) &&
              codes_fit_containers(MxFormat::kMxfp6E2m3) && codes_fit_containers(MxFormat::kMxfp6E3m2));

// mx_a_m16k32.h

constexpr bool codes_bijective() {
  bool seen[kTileRows][2][kBlockK] = {};
  for (int lane = 0; lane < kWarpLanes; ++lane)
    for (int word = 0; word < 4; ++word)
      for (int code = 0; code < kWordCodes; ++code) {
        const CodeSource s = source_of({lane, word, code});
        if (seen[s.row][s.block][s.k] || !(place_of(s) == CodePlace{lane, word, code})) return false;
        seen[s.row][s.block][s.k] = true;
      }
  return true;
}
constexpr bool scales_bijective(int blocks) {
  bool seen[8 * kTileRows] = {};
  for (int row = 0; row < kTileRows; ++row)
    for (int block = 0; block < blocks; ++block) {
      const int at = scale_offset(blocks, row, block) - blocks / 2 * kBlockPairBytes;
      if (at < 0 || at >= blocks * kTileRows || seen[at]) return false;
      seen[at] = true;
    }
  return true;
}
static_assert(codes_bijective());
static_assert(scales_bijective(6) && scales_bijective(8));
static_assert(tile_bytes(2880) == 24480 && slices_of(2880).count == 15 && slice_bytes(6) * 15 == 24480);
static_assert(tile_bytes(4096) == 34816 && slices_of(4096).count == 16 && slice_bytes(8) * 16 == 34816);
static_assert(sliced_width(2880) == 2880 && sliced_width(1440) == 1472 && sliced_width(736) == 768 &&
              sliced_width(672) == 704 && sliced_width(384) == 384 && sliced_width(0) == 64);
static_assert(block_pair_width(1440) == 1472 && block_pair_width(736) == 768 && block_pair_width(384) == 384);
static_assert(!fills_up(1440, 1407) && fills_up(1440, 1408) && fills_up(32, 0) && !fills_up(384, 383));
static_assert(slices_of(1472).count == 8 && slices_of(1472).missing == 1 && tile_bytes(1472) == 12544);
static_assert(slices_of(704).count == 4 && slices_of(704).missing == 1 && slices_of(64).missing == 2);
static_assert(tile_bytes(2880) % 16 == 0 && slice_bytes(6) % 16 == 0);  // cp.async.bulk, 16-byte shared loads

// packed.h

static_assert(geometry(Packing::kBf16, 2880).tile_bytes == 16 * 2880 * 2);
static_assert(geometry(Packing::kBf16, 4096).tile_bytes == 16 * 4096 * 2);
static_assert(geometry(Packing::kMxfp8, 2880).tile_bytes == 16 * 90 * 33);
static_assert(geometry(Packing::kQ8, 2880).chunk_bytes == 15 * 1088 + 64);
static_assert(geometry(Packing::kQ8, 4096).tile_bytes == 16 * 128 * 34);
static_assert(geometry(Packing::kMxfp4, 2880).tile_bytes == tile_bytes(2880));
static_assert(geometry(Packing::kMxfp4, 4096).piece_bytes == slice_bytes(8));
static_assert(geometry(Packing::kMxfp4, 1472).tile_bytes == tile_bytes(1472));
static_assert(geometry(Packing::kBf16, 1472).slices == 0);
static_assert(block_pair_offset(Packing::kMxfp4, geometry(Packing::kMxfp4, 1472), 1, 0) ==
              tile_bytes(1472) - kBlockPairBytes);
constexpr bool pairs_bijective() {
  bool seen[kTileRows][64] = {};
  for (int lane = 0; lane < kWarpLanes; ++lane)
    for (int i = 0; i < 32; ++i) {
      const BlockPairElement e = block_pair_element(lane, i / 8, i / 2 % 4, i % 2);
      if (seen[e.row][e.k]) return false;
      seen[e.row][e.k] = true;
    }
  return true;
}
static_assert(pairs_bijective());

// mx_b_n8k64.h

constexpr bool words_are_the_registers() {
  for (int reg = 0; reg < 4; ++reg)
    for (int i = 0; i < 4; ++i) {
      const auto byte = static_cast<int>(mx_word_bytes(reg % 2) >> 4 * i & 15u);  // registers of two bytes
      const BlockPairElement packed = block_pair_element(5, reg / 2, byte / 2, byte % 2),
                             own = mx_block_pair_element(5, 0, reg, i);
      if (packed.row != own.row || packed.k != own.k) return false;
    }
  return true;
}
static_assert(words_are_the_registers());
constexpr bool codes_of_a_row_bijective(MxFormat format) {
  bool seen[4 * kBlockPairK] = {};
  for (int k = 0; k < 2 * kBlockPairK; ++k) {
    const int at = 2 * mx_code_offset(format, k) + mx_code_shift(format, k) / 4;
    if (at < 0 || at >= 4 * kBlockPairK || seen[at]) return false;
    seen[at] = true;
  }
  return true;
}
// Wherever m16n8k32 multiplies a byte of A with one of B, both are of one k; and A's row is the row.
constexpr bool bytes_meet() {
  constexpr MxFormat kBytes = MxFormat::kMxfp8E4m3;
  for (int lane = 0; lane < kWarpLanes; ++lane)
    for (int block = 0; block < 2; ++block)
      for (int reg = 0; reg < 4; ++reg)
        for (int i = 0; i < 4; ++i) {
          const BlockPairElement own = mx_block_pair_element(lane, block, reg, i);
          const MxElement slot = mx_a_element(kMxK32, {lane, reg, i});
          const MxPlace b = mx_b_place(kMxK32, {0, slot.k});
          const int at = b.lane % 4 * mx_lane_bytes(kBytes) + 8 * block + 4 * b.reg + b.at;
          if (own.row != slot.line || own.k / kBlockK != block || mx_code_offset(kBytes, own.k) != at) return false;
        }
  return true;
}
// Codes meet in m16n8k64, too, whose A register r holds of block r / 2 the row of register r % 2 there: a step's codes
// in the low halves of its bytes, the other's in the high ones (small_floats.h nibbles_of).
constexpr bool nibbles_meet() {
  constexpr MxFormat kNibbles = MxFormat::kMxfp4;
  for (int lane = 0; lane < kWarpLanes; ++lane)
    for (int reg = 0; reg < 4; ++reg)
      for (int i = 0; i < 8; ++i) {
        const BlockPairElement own = mx_block_pair_element(lane, reg / 2, 2 * (i % 2) + reg % 2, i / 2);
        const MxElement slot = mx_a_element(kMxK64, {lane, reg, i});
        const MxPlace b = mx_b_place(kMxK64, {0, slot.k});
        const int at = b.lane % 4 * mx_lane_bytes(kNibbles) + 4 * b.reg + b.at / 2;
        if (own.row != slot.line || own.k / kBlockK != slot.k / kBlockK || mx_code_offset(kNibbles, own.k) != at ||
            mx_code_shift(kNibbles, own.k) != b.at % 2 * 4)
          return false;
      }
  return true;
}
static_assert(codes_of_a_row_bijective(MxFormat::kMxfp8E4m3) && codes_of_a_row_bijective(MxFormat::kMxfp4));
static_assert(bytes_meet() && nibbles_meet());
static_assert(mx_row_bytes(MxFormat::kMxfp8E4m3, 2880) == 2976 && mx_row_bytes(MxFormat::kMxfp8E4m3, 4096) == 4224);
static_assert(mx_row_bytes(MxFormat::kMxfp4, 2880) == 1536);

// wgmma_b.h

constexpr bool slots_are_what_the_mma_sees() {
  for (int t = 0; t < 4; ++t)
    for (int step = 0; step < 2; ++step)
      for (int reg = 0; reg < 4; ++reg)
        for (int half = 0; half < 2; ++half)
          if (slot_of_k(k_of(t, step, reg / 2, half)) != 16 * step + a_k(t, reg, half)) return false;
  return true;
}
constexpr bool slots_bijective() {
  uint32_t seen = 0;
  for (int k = 0; k < kBlockK; ++k) seen |= 1u << slot_of_k(k);
  return seen == 0xffffffffu;
}
constexpr bool chunks_are_swizzled_addresses() {
  for (int token = 0; token < 256; ++token)
    for (int chunk = 0; chunk < 8; ++chunk)
      if (swizzled_chunk(token, chunk) != swizzle128(static_cast<uint32_t>(token * kAtomRowBytes + chunk * 16)))
        return false;
  return true;
}
constexpr bool panels_bijective() {
  bool seen[16 * 2 * kPanelK] = {};
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 2 * kPanelK; ++k) {
      bool& place = seen[place_in_panels(16, row, k)];
      if (place) return false;
      place = true;
    }
  return true;
}
static_assert(slots_are_what_the_mma_sees() && slots_bijective() && chunks_are_swizzled_addresses());
static_assert(panels_bijective());

// Byte i of register 2 step + half is k_of's element i % 2 of the word's pair half + 2 (i / 2).
constexpr bool byte_slots_are_what_the_wgmma_sees() {
  for (int t = 0; t < 4; ++t)
    for (int step = 0; step < 2; ++step)
      for (int i = 0; i < 4; ++i) {
        const MxElement slot = mx_a_element(kMxK32, {t, 2 * step, i});
        if (byte_slot_of_k(k_of(t, step, i / 2, i % 2)) != slot.k) return false;
      }
  return true;
}
constexpr bool byte_chunks_are_swizzled_addresses() {
  for (int token = 0; token < 256; ++token)
    for (int chunk = 0; chunk < 4; ++chunk)
      if (swizzled_byte_chunk(token, chunk) != swizzle64(static_cast<uint32_t>(token * kByteRowBytes + chunk * 16)))
        return false;
  return true;
}
constexpr bool byte_panels_bijective() {
  bool seen[16 * 2 * kPanelK] = {};
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 2 * kPanelK; ++k) {
      bool& place = seen[place_in_byte_panels(16, row, k)];
      if (place) return false;
      place = true;
    }
  return true;
}
static_assert(byte_slots_are_what_the_wgmma_sees() && byte_chunks_are_swizzled_addresses() && byte_panels_bijective());

// screen_codes.h

constexpr bool shortens_and_lengthens() {
  const uint32_t registers[kScreenRegisters] = {
      0x01020304, 0x7f7f7f7f, 0, 0x55aa & 0x7f7f, 0x12345678 & 0x7f7f7f7f, 0x40404040, 0x3f3f3f3f, 0x5a6b7c0d};
  uint32_t words[kScreenWords] = {}, back[kScreenRegisters] = {};
  shorten(registers, words);
  lengthen(words, back);
  for (int j = 0; j < kScreenRegisters; ++j)
    if (back[j] != registers[j]) return false;
  return true;
}
static_assert(shortens_and_lengthens());
constexpr bool screen_elements_meet_their_activations() {
  bool seen[16][kScreenColumns] = {};
  for (int lane = 0; lane < kWarpLanes; ++lane)
    for (int reg = 0; reg < kScreenRegisters; ++reg)
      for (int byte = 0; byte < 4; ++byte) {
        const ScreenElement e = screen_element(lane, reg, byte);
        const ScreenPlace p = screen_place(e.k);
        if (seen[e.row][e.k] || p.t != lane % 4 || p.reg != reg / 4 * 2 + reg % 4 / 2 || p.byte != byte) return false;
        seen[e.row][e.k] = true;
      }
  return true;
}
static_assert(screen_elements_meet_their_activations());

}  // namespace nibble::backend::cuda::layout::proof
