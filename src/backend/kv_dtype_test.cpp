#include "backend/kv_dtype.h"

#include "base/error.h"

#include <gtest/gtest.h>

#include <string>

namespace nibble::backend {
namespace {

std::string refusal(const KvType& type, BackendKind taker) {
  try {
    require_taken(type, taker);
  } catch (const Error& why) {
    EXPECT_EQ(why.code(), Code::kUnsupported);
    return why.what();
  }
  return "";
}

// What adds a type: this line. Each backend asks require_taken() for the line before it takes memory.
constexpr KvType kNew = {static_cast<KvDtype>(kKvDtypes), "nf4", "nf4", 1, 2, true, {}};

TEST(kv_dtype, a_new_line_is_refused_by_name_by_every_backend) {
  EXPECT_EQ(refusal(kNew, BackendKind::kCpu), "--kv-cache-dtype nf4: no kernels of --backend cpu take it");
  EXPECT_EQ(refusal(kNew, BackendKind::kCuda), "--kv-cache-dtype nf4: no kernels of --backend cuda take it");
  EXPECT_EQ(refusal(kNew, BackendKind::kReference), "--kv-cache-dtype nf4: no kernels of --backend reference take it");
}

TEST(kv_dtype, a_line_is_taken_by_whom_it_names) {
  KvType type = kNew;
  type.on = {BackendKind::kCpu};
  EXPECT_EQ(refusal(type, BackendKind::kCpu), "");
  EXPECT_NE(refusal(type, BackendKind::kCuda), "");
}

TEST(kv_dtype, int8_alone_is_not_for_cards) {
  for (const KvType& type : kKvTypes) {
    EXPECT_EQ(refusal(type, BackendKind::kCpu), "");
    EXPECT_EQ(refusal(type, BackendKind::kReference), "");
    EXPECT_EQ(type.on.has(BackendKind::kCuda), type.dtype != KvDtype::kInt8) << type.word;
  }
}

}  // namespace
}  // namespace nibble::backend
