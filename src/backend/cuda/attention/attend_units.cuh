#pragma once
// Which chunk of which token's keys a CTA of attend_decode takes, found from the step's positions (attend_plan.h
// chunk_blocks) by each warp for itself. All of it is known before the kernel before has ended.

#include "backend/cuda/attention/attend_tile.cuh"
#include "backend/cuda/ptx/registers.cuh"

namespace nibble::backend::cuda {

// What a CTA does: a chunk of one token's keys.
struct DecodeUnit {
  int token = 0;  // in the step
  int row = 0;    // of the page table
  int chunk = 0, chunks = 0;
  int first_partial = 0;  // of a token in several chunks: units of such tokens before it
  KeyRange visible;
  bool any = false;

  // The chunk's keys.
  __device__ KeyRange keys() const {
    const BlockSpan span = chunk_span(visible.blocks(), chunks, chunk);
    const int first = visible.first + span.first * kPageTokens;
    return {first, min(first + span.count * kPageTokens - 1, visible.last)};
  }
};

// A token that decodes; one per lane.
struct DecodeEntry {
  int token = 0, row = 0;
  KeyRange visible{0, -1};
  __device__ DecodeEntry(const AttentionArgs& args, int entry) {
    if (entry >= args.decode_count) return;
    token = args.decode_tokens == nullptr ? entry : args.decode_tokens[entry];
    row = args.token_row[token];
    visible = visible_keys(args.positions[token], args.window);
  }
};

// Units, and those of tokens in several chunks: two counts in one word, for one scan.
inline constexpr int kSplitShift = 16;
__device__ __forceinline__ int count_units(int blocks, int size) {
  const int chunks = chunks_of(blocks, size);
  return chunks > 1 ? chunks | chunks << kSplitShift : chunks;
}

// Finds unit `wanted`. All lanes call it together. Where nobody's keys are split, unit n is token n: in a window that
// is known, else the others' positions say so. Alone, a token needs no look at others.
__device__ inline DecodeUnit find_unit(const AttentionArgs& args, int wanted, int lane) {
  constexpr int kUnits = (1 << kSplitShift) - 1;
  const bool alone = args.decode_count == 1;
  const DecodeEntry own(args, alone ? 0 : wanted);
  const int own_blocks = own.visible.blocks();
  const auto own_unit = [&](int chunk, int chunks) {
    return DecodeUnit{own.token, own.row, chunk, chunks, 0, own.visible, own_blocks > 0 && chunk < chunks};
  };
  if (never_split(args.window)) return own_unit(0, 1);
  if (alone) return own_unit(wanted, chunks_of(own_blocks, chunk_blocks(own_blocks, args.target)));
  int all = 0, most = 0;
#pragma unroll 4
  for (int base = 0; base < args.decode_count; base += kAttendLanes) {
    const int blocks = DecodeEntry(args, base + lane).visible.blocks();
    all += blocks;
    most = max(most, blocks);
  }
  for (int step = 16; step > 0; step /= 2) all += __shfl_xor_sync(kWholeWarp, all, step);
  const int size = chunk_blocks(all, args.target);
  if (static_cast<int>(ptx::warp_max_u32(static_cast<uint32_t>(most))) <= size) return own_unit(0, 1);
  DecodeUnit unit;
  int before = 0;
  for (int base = 0; base < args.decode_count; base += kAttendLanes) {
    const DecodeEntry entry(args, base + lane);
    const int mine = count_units(entry.visible.blocks(), size);
    int until = mine;  // of the lanes up to this one
    for (int step = 1; step < kAttendLanes; step *= 2) {
      const int other = __shfl_sync(kWholeWarp, until, lane >= step ? lane - step : lane);
      if (lane >= step) until += other;
    }
    until += before;
    const uint32_t beyond = __ballot_sync(kWholeWarp, (until & kUnits) > wanted);
    if (beyond != 0) {
      const int owner = __ffs(static_cast<int>(beyond)) - 1;
      const int count = __shfl_sync(kWholeWarp, mine, owner), first = __shfl_sync(kWholeWarp, until, owner) - count;
      unit.token = __shfl_sync(kWholeWarp, entry.token, owner);
      unit.row = __shfl_sync(kWholeWarp, entry.row, owner);
      unit.visible = {__shfl_sync(kWholeWarp, entry.visible.first, owner),
                      __shfl_sync(kWholeWarp, entry.visible.last, owner)};
      unit.chunks = count & kUnits;
      unit.chunk = wanted - (first & kUnits);
      unit.first_partial = first >> kSplitShift;
      unit.any = true;
      return unit;
    }
    before = __shfl_sync(kWholeWarp, until, kAttendLanes - 1);
  }
  return unit;
}

}  // namespace nibble::backend::cuda
