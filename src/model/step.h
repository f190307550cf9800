#pragma once
// One forward pass as plain data, complete when built.

#include "backend/args.h"

#include <array>
#include <cstdint>
#include <vector>

namespace nibble::model {

struct Step {
  std::vector<int32_t> token_ids;  // [tokens]
  std::vector<int32_t> positions;  // [tokens]
  std::vector<backend::Row> rows;  // the sequences, covering the tokens in order
  struct Kv {
    std::vector<int32_t> slots;     // [tokens] where the tokens' keys and values go
    std::vector<int32_t> page_ids;  // [rows, pages_per_row]
    int32_t pages_per_row = 0;
  };
  std::array<Kv, backend::kLayerKinds> kv;      // by LayerKind
  std::vector<int32_t> logit_tokens;            // indices of the tokens that get a row of logits
  std::vector<backend::SampleRow> sample_rows;  // empty, or one per row of logits
};

}  // namespace nibble::model
