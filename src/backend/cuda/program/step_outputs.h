#pragma once
// What steps leave for the host, on its way there: drawn tokens, and residual streams for a head.

#include "backend/backend.h"
#include "backend/cuda/card/device.h"

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace nibble::backend::cuda {

// Drawn tokens, a few steps at a time.
class Tickets {
 public:
  // At most `rows` rows of `vocab` logits in a step.
  Tickets(int64_t rows, int64_t vocab, cudaStream_t stream);

  // Begins the next ticket.
  void open(std::span<const SampleRow> rows);
  // While `logits` [rows, vocab] are as the model gave them: enqueues the copy of the rows that ask for logprobs.
  void keep(const float* logits);
  // Enqueues the copy of the rows' tokens and gives the ticket out.
  Ticket hand_out(const int32_t* sampled);
  [[nodiscard]] std::vector<DrawnToken> wait(Ticket ticket);

 private:
  static constexpr int kTickets = 4;  // that may wait at the same time; backend.h promises two
  // What is asked of a row beyond its token.
  struct RowRequest {
    int64_t position = 0;
    int32_t given = -1;
    int logprobs = -1;
    bool masked = false;
    int64_t logits = -1;  // its place in StepSamples::logits, in rows
  };
  struct StepSamples {
    PinnedBytes tokens;
    Event done;
    Ticket ticket = 0;  // 0: free
    std::vector<RowRequest> rows{};
    PinnedBytes logits{};  // as the model gave them; grows when logprobs are asked for
    int64_t logits_rows = 0;
  };

  [[nodiscard]] DrawnToken read(const RowRequest& row, int32_t token, const StepSamples& from) const;

  int64_t vocab_;
  cudaStream_t stream_;
  std::array<StepSamples, kTickets> sampled_;
  Ticket last_ = 0;
};

// The residual streams of steps, those of two steps at a time.
class TapCopies {
 public:
  // Room for steps of up to `tokens`, `width` floats of each.
  TapCopies(int64_t tokens, int64_t width, cudaStream_t stream);

  // Enqueues the copy of [tokens, width] values.
  [[nodiscard]] TapTicket copy(const float* from, int64_t tokens);
  // As Backend::wait_taps.
  [[nodiscard]] std::span<const float> wait(TapTicket ticket) const;

 private:
  struct Copy {
    PinnedBytes values;
    Event done;
    TapTicket ticket = 0;
    int64_t count = 0;
  };
  int64_t width_;
  cudaStream_t stream_;
  std::array<Copy, 2> copies_;
  TapTicket last_ = 0;
};

}  // namespace nibble::backend::cuda
