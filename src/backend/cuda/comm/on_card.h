#pragma once

#include "backend/cuda/card/device.h"

namespace nibble::backend::cuda {

// Makes a card current, and then again the one that was.
class OnCard {
 public:
  explicit OnCard(int card) {
    cuda_check(cudaGetDevice(&before_));
    cuda_check(cudaSetDevice(card));
  }
  ~OnCard() { cudaSetDevice(before_); }
  OnCard(const OnCard&) = delete;
  OnCard& operator=(const OnCard&) = delete;

 private:
  int before_ = 0;
};

}  // namespace nibble::backend::cuda
