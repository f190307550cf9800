#pragma once
// The screen of the unembedding (backend/screen.h) on the CPU: a copy in codes of 6 bits, and the rows that may win.

#include "backend/cpu/kernels.h"
#include "backend/cpu/linear.h"
#include "backend/sampling.h"
#include "backend/screen.h"
#include "base/buffer.h"
#include "base/thread_pool.h"

#include <cstdint>
#include <span>
#include <vector>

namespace nibble::backend::cpu {

class Screen {
 public:
  // The copy's, with all that is beside the codes.
  [[nodiscard]] static constexpr int64_t bytes(int64_t rows, int64_t cols) { return rows * (cols * 3 / 4 + 12); }
  // Formats with more bits than the copy, and whole tiles.
  [[nodiscard]] static bool serves(WeightFormat format, int64_t rows, int64_t cols);

  // REQUIRES serves() and kernels.screen.
  Screen(const Matrix& matrix, const Kernels& kernels, ThreadPool& pool);

  struct Step {
    const Matrix& matrix;             // that the copy was made of
    Vectors<const float> x;           // up to kScreenTokens
    bool int8;                        // they will be multiplied in int8
    std::span<const SampleRow> rows;  // draws_unfiltered()
    float* scratch;                   // [tokens, rows of the matrix]
  };
  // The rows of the matrix that may win some token's draw, in order; none: all have to be computed. Until the next
  // call.
  [[nodiscard]] std::span<const int32_t> candidates(const Step& step);
  [[nodiscard]] const ScreenCounts& counts() const { return counts_; }

 private:
  friend struct ScreenAccess;  // of tests
  struct Token : ScreenedToken {
    std::vector<float> v;   // as it is multiplied
    float step = 0;         // of X
    int32_t sums[2] = {};   // of X's digits
    float temperature = 0;  // 0: greedy
    float least = 0;        // what a candidate reaches
    // Rows whose logits have a bias or a penalty are candidates without a look; the mask's others, a bit each. Empty:
    // all.
    std::vector<int32_t> changed;
    std::vector<uint32_t> others;
  };

  [[nodiscard]] int64_t tile_bytes() const { return kScreenRows * cols_ * 3 / 4; }
  // Returns |w|. Changes the row.
  float copy_row(int64_t r, std::span<float> row);
  // The rows that a token's bounds decide over; false where there are too few to gain.
  [[nodiscard]] bool choose_rows(const SampleRow& draw, Token& own) const;
  // Rounds a token; false where no bound would hold.
  [[nodiscard]] bool prepare(const Step& step, int t);
  void look(const Step& step, int64_t tile, std::span<TokenLogit> best);
  // False where no row may be drawn.
  [[nodiscard]] bool find_least(const Step& step, size_t t);

  const Kernels& kernels_;
  ThreadPool& pool_;
  const int64_t rows_, cols_;
  Buffer codes_;                             // ScreenArgs
  std::vector<float> mean_, rms_, inverse_;  // [cols], inverse: 1 / rms
  std::vector<float> scale_, lost_, kept_;   // [rows] w' of a code; |w' - q| and |q|, rounded up
  double longest_ = 0;                       // of the rows' |w|; infinity: no step is screened
  std::vector<Token> tokens_;
  std::vector<float> row_;        // [cols]
  std::vector<int8_t> digits_;    // ScreenArgs::x
  std::vector<float> most_;       // [tokens, tiles] what the best of a tile's rows may have
  std::vector<TokenLogit> best_;  // [threads, tokens]
  std::vector<int32_t> candidates_;
  ScreenCounts counts_;
  int resting_ = 0;
};

}  // namespace nibble::backend::cpu
