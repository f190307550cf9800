#pragma once
// The forms of int8 products that int8_test.cpp holds against double; each architecture's file of tests names its own.

#include "backend/cpu/kernels.h"

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

namespace nibble::backend::cpu {

struct Int8Form {
  const char* name;
  const char* needs;             // what a CPU must have, for who reads that it was skipped
  const Int8Kernels* (*find)();  // null: not here

  friend std::ostream& operator<<(std::ostream& out, const Int8Form& form) { return out << form.name; }
};

// The int8 products of this CPU's table of `isa`; null: it has none.
inline const Int8Kernels* int8_of(CpuIsa isa) {
  for (const IsaKernels& each : kernels_here())
    if (each.isa == isa) return each.kernels.int8;
  return nullptr;
}

class Int8Products : public testing::TestWithParam<Int8Form> {
 protected:
  void SetUp() override {
    kernels_ = GetParam().find();
    if (kernels_ == nullptr) GTEST_SKIP() << "this CPU, or its Linux, offers no " << GetParam().needs;
  }

  // Rows, and the tiles that serve.
  [[nodiscard]] std::vector<const TokenTiles*> forms(WeightFormat format, int tokens) const {
    std::vector<const TokenTiles*> forms{nullptr};
    for (const TokenTiles* each : kernels_->tiles)
      if (each != nullptr && each->serves(format, tokens)) forms.push_back(each);
    return forms;
  }

  const Int8Kernels* kernels_ = nullptr;
};

inline std::string form_name(const testing::TestParamInfo<Int8Form>& tested) { return tested.param.name; }

}  // namespace nibble::backend::cpu
