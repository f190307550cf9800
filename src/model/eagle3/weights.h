#pragma once
// An EAGLE-3 head as it is published: config.json and model.safetensors in a directory. A head is a small Llama that
// reads the target's residuals and drafts what comes next.

#include "backend/draft_head.h"
#include "backend/weights.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/eagle3_config.h"
#include "model/config.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nibble::model::eagle3 {

using Matrix = backend::HeadMatrix;
using Layer = backend::HeadLayer;

struct Weights : backend::HeadWeights {
  std::vector<int> boundaries;                  // of the target's residuals that it reads (model/gpt_oss.h: Taps)
  std::optional<checkpoint::Checkpoint> files;  // what matrices point into, or
  std::vector<std::vector<std::byte>> made_up;  // where they come from no file
};

using checkpoint::TapReading;

// The boundaries that `config` means of a target with so many layers. Throws Error(kCorrupt) where there is none such.
[[nodiscard]] std::vector<int> boundaries_of(const checkpoint::Eagle3Config& config, int64_t layers,
                                             TapReading reading);

// What the head is for. A head without embedding or lm_head uses the target's; the bytes live as long as the head.
struct Target {
  const ModelConfig& config;
  std::span<const backend::HostWeight> weights;
};

// Of heads without one. Throws Error(kUnsupported) where it is quantised, naming who wants it.
[[nodiscard]] Matrix shared_embedding(const Target& target, const std::string& where);

// Throws what read_eagle3_config() and Checkpoint::open() throw, Error(kCorrupt) for a tensor that is missing, of the
// wrong shape or type or not of such a head, naming it, and for a head of another target; Error(kUnsupported) for a
// target whose shared tensors are quantised.
[[nodiscard]] Weights load(const std::filesystem::path& directory, const Target& target, TapReading reading);

}  // namespace nibble::model::eagle3
