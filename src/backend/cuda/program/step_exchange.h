#pragma once
// What a step exchanges with the host: the small arrays that its verbs bring, kept on the device as long as they do not
// change; and, on their way back, drawn tokens, and residual streams for a head.

#include "backend/backend.h"
#include "backend/cuda/card/device.h"
#include "backend/cuda/memory/arena.h"
#include "backend/cuda/memory/staging.h"
#include "backend/cuda/program/program.h"
#include "backend/cuda/sampling/sample.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace nibble::backend::cuda {

class StepInputs {
 public:
  StepInputs(const BackendConfig& config, const Arena& at, cudaStream_t stream);

  // All that a step's launches read, in few copies: page tables, sampling and what attention takes only when they
  // changed. The pointers are the same for every step of as many tokens whose shares are decode attention's alone.
  StepPointers put(const StepArgs& step, const AttendShares& shares);
  const SampleRowParams* params(SampleInputs& inputs);

 private:
  void spread(std::span<const Row> rows);

  static constexpr int64_t kFewTokens = 8;  // whose arrays lie close together: one short copy

  const Arena& at_;
  Staging staging_;
  StepArray<int32_t> logit_tokens_;
  std::vector<PageArray> pages_;  // by LayerKind, as far as the model has them
  StepArray<SampleRowParams> params_;
  std::optional<StepArray<int32_t>> decode_tokens_;  // with attention on tensor cores
  std::optional<StepArray<AttendTile>> attend_tiles_;
  std::vector<int32_t> host_row_, host_last_, ints_;
};

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
