#pragma once
// A screen: the token of a draw from a part of the unembedding's bytes (docs/decisions/0074, on the CPU 0076). A short
// copy of the matrix gives every logit but for an error that is bounded; whoever's bound reaches the best row's exact
// logit is a candidate, and only candidates are multiplied as the whole matrix would be. On a
// card it serves draws_by_temperature(), on the CPU draws_unfiltered().
//
// y = W · v, columns of W shifted by their mean m and divided by their rms s: w' = (w - m) / s, x' = v · s. Then
// y = x' · w' + v · m, and the last term is the same for all rows: it decides nothing. With codes q, x' in steps of X:
//   |x' · w' - X · q| <= |x'| |w' - q| + |x' - X| |q|
// Bounds are of exact numbers; what floats lose is added. Device code includes this.

#include <cstdint>

namespace nibble::backend {

// What the bounds want to know of a token's activations.
struct ScreenedToken {
  float common = 0;    // v · m
  float length = 0;    // |x'|
  float missed = 0;    // |x' - X|, rounded up
  float rounding = 0;  // what floats may lose of two logits, and of their draw
};

// What floats may lose of a row's value by the short copy, as a part of |x'||w'|, and of the noise of a draw.
inline constexpr float kOfRows = 0x1p-16f, kOfNoise = 0x1p-17f;
// What `lost` and `kept` of a row, |w' - q| and |q|, are rounded up by.
inline constexpr float kRowUp = 1.0f + 0x1p-9f;

// How far above its value by the short copy a row's logit may be.
template <class Floats>
[[nodiscard]] constexpr Floats above_screened(const ScreenedToken& own, Floats lost, Floats kept) {
  return own.length * lost + own.missed * kept + own.rounding;
}
// What a row of this exact product v · w has at the least, without what all have in common.
[[nodiscard]] constexpr float least_screened(const ScreenedToken& own, float product, float lost, float kept) {
  return product - own.common - kOfRows * own.length * (kept + lost);
}

// Steps that rest after one in which more than a kManyCandidates-th of the matrix were candidates: then the short copy
// is read in vain.
inline constexpr int kRestingSteps = 64, kManyCandidates = 8;

// Whether memory has the room for a copy of so many bytes.
[[nodiscard]] constexpr bool has_room_to_screen(int64_t copy_bytes, int64_t memory_bytes) {
  return copy_bytes <= memory_bytes / 40;
}

}  // namespace nibble::backend
