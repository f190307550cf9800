#pragma once
// q, k and v of a token and kv head made of qkv's sums by the warps that attend with them: rope_sums.cuh's arithmetic,
// to the bit. The token's key and value go into their slot, and from registers to the warp that attends to them.

#include "backend/cuda/attention/attend_tile.cuh"
#include "backend/cuda/attention/attend_units.cuh"
#include "backend/cuda/attention/head_quads.cuh"

namespace nibble::backend::cuda {

// Dimensions d and d + 1 of a head, d < 32, and the two that turn with them.
struct HeadPairs {
  float2 first{}, second{};

  __device__ static float2 wide(uint32_t pair) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
  }
  __device__ void set_bias(const Bf16* at_d) {
    first = wide(*reinterpret_cast<const uint32_t*>(at_d));
    second = wide(*reinterpret_cast<const uint32_t*>(at_d + kHalfHead));
  }
  // As split_gemm_plan.h place_in_sums has them.
  __device__ void add(const uint2& sums) {
    const float2 a = wide(sums.x), b = wide(sums.y);
    first.x += a.x;
    second.x += a.y;
    first.y += b.x;
    second.y += b.y;
  }
  __device__ void turn(const float2& cosine, const float2& sine) {
    turn_pair(first.x, second.x, cosine.x, sine.x);
    turn_pair(first.y, second.y, cosine.y, sine.y);
  }
};

// Where all is in its place.
struct NoQkvSums {
  __device__ NoQkvSums(const RopeSumsArgs& /*args*/, int /*token*/) {}
};

// A lane's part of them. In each round but the last its warp has the query heads as lanes of operand A want them (of
// several warps, each of the first four a round); in the last its lower half has k, its upper half v.
template <class Tile>
struct QkvSumHeads {
  using Kv = typename Tile::Kv;
  static constexpr int kRounds = Tile::kWarps == 1 ? kDimSteps + 1 : 2;
  const RopeSumsArgs& args;
  int token, slot, lane;
  bool value;  // of v, in the last round
  int dim[kRounds], head[kRounds];
  HeadPairs pairs[kRounds];
  typename Kv::Pair page[2];    // of the last round, as pages hold them
  typename Kv::Scale scale[2];  // likewise

  // Reads what no kernel of the step writes.
  __device__ QkvSumHeads(const RopeSumsArgs& a, int of_token)
      : args(a),
        token(of_token),
        slot(a.kv_slots[of_token]),
        lane(static_cast<int>(threadIdx.x) % kAttendLanes),
        value(lane >= kAttendLanes / 2) {
    const int group = a.heads / a.kv_heads, kv_head = static_cast<int>(blockIdx.x);
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int part = Tile::kWarps == 1 ? r : static_cast<int>(threadIdx.x) / kAttendLanes % kDimSteps;
      const bool query = r < kRounds - 1;
      dim[r] = query ? Kv::query_dim(part / 2, lane % 4, part % 2) : page_dim(0);
      head[r] = query ? kv_head * group + min(lane / 4, group - 1) : a.heads + (value ? a.kv_heads : 0) + kv_head;
      pairs[r].set_bias(a.bias + head[r] * kHeadDim + dim[r]);
    }
  }

  // Behind the wait for the sums. Splits in their order; four at a time are under way together.
  __device__ void turn() {
    constexpr int kTogether = 4;
    const uint16_t* from[kRounds];
    float2 cosine[kRounds], sine[kRounds];
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int row = head[r] * kHeadDim + dim[r] / 8 * layout::kTileRows + dim[r] % 8;  // RowOrder::kHeads64
      from[r] = static_cast<const uint16_t*>(args.sums.at) + place_in_sums(args.tokens, token, row);
      cosine[r] = load_pair(args.cosine + token * kHalfHead + dim[r]);
      sine[r] = load_pair(args.sine + token * kHalfHead + dim[r]);
    }
    const int64_t pitch = split_pitch(args.tokens, args.rows());
#pragma unroll 1
    for (int first = 0; first < args.sums.splits; first += kTogether) {
      uint2 sums[kTogether][kRounds];
#pragma unroll
      for (int s = 0; s < kTogether; ++s)
#pragma unroll
        for (int r = 0; r < kRounds; ++r)
          sums[s][r] =
              first + s < args.sums.splits ? *reinterpret_cast<const uint2*>(from[r] + (first + s) * pitch) : uint2{};
#pragma unroll
      for (int s = 0; s < kTogether; ++s)
#pragma unroll
        for (int r = 0; r < kRounds; ++r) pairs[r].add(sums[s][r]);
    }
#pragma unroll
    for (int r = 0; r < kRounds; ++r)
      if (r < kRounds - 1 || !value) pairs[r].turn(cosine[r], sine[r]);
    round(pairs[kRounds - 1].first, 0);
    round(pairs[kRounds - 1].second, 1);
  }
  // Of query part `part`, and of part + kDimSteps.
  [[nodiscard]] __device__ const HeadPairs& query(int part) const { return pairs[Tile::kWarps == 1 ? part : 0]; }

  // The lane's first dimension of half a head, in the last round; sixteen lanes have all of it.
  [[nodiscard]] __device__ int page_dim(int half) const { return lane % (kAttendLanes / 2) * 2 + half * kHalfHead; }
  __device__ __forceinline__ void round(const float2& x, int half) {
    static_assert(Kv::kAlone || Kv::kBlock == kHalfHead);
    scale[half] = scale_of_lanes<Kv, kAttendLanes / 2>(Kv::kAlone ? 0.0f : ptx::max_nan(fabsf(x.x), fabsf(x.y)));
    page[half] = Kv::pair(x, scale[half]);
  }
  // The token's key and value, into their slot of the pages.
  __device__ void store_slot() const {
    void* const pages = value ? args.kv.values : args.kv.keys;
    const int64_t first = place_in_pages(slot, args.kv_heads, static_cast<int>(blockIdx.x));
    for (int half = 0; half < 2; ++half) {
      const RowPlace place = place_of<Kv>(first + page_dim(half), kHeadDim);
      *reinterpret_cast<typename Kv::Pair*>(static_cast<uint8_t*>(pages) + place.code) = page[half];
      if (page_dim(half) % kHalfHead == 0) store_scale<Kv>(pages, place, scale[half]);
    }
  }
  // The same into shared memory, as key number `key` of a stage.
  __device__ void store_stage(uint32_t stage, int key) const {
    const uint32_t rows = stage + (value ? rows_bytes<Kv>(Tile::kStepKeys) : 0);
    for (int half = 0; half < 2; ++half) {
      const int byte = Kv::code_bytes(page_dim(half));
      Kv::store_shared(rows + Kv::chunk_at(key, byte / 16) + static_cast<uint32_t>(byte % 16), page[half]);
    }
    if constexpr (!Kv::kAlone) {
      const uint32_t scales = shared_rows<Kv>(rows, Tile::kStepKeys).scales;
      if (page_dim(0) == 0) Kv::store_shared(scales + static_cast<uint32_t>(key * rows_scale_bytes<Kv>(1)), scale);
    }
  }
};

}  // namespace nibble::backend::cuda
