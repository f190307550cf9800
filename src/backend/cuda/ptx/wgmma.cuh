#pragma once
// PTX ISA §9.7.15 (asynchronous warpgroup-level matrix instructions), wgmma.m64nN with A in registers, B in shared
// memory by descriptor (layout/wgmma_b.h); sm_90a only. A warp of the group holds rows 16 w … 16 w + 15:
// its registers are those of mma.m16n8k16 (layout/mma_fragments.h), of bytes those of mma.m16n8k32
// (layout/mma_fragments.h); d[j] is columns 8 j … 8 j + 7. The type goes into the instruction's name as a string ("C"
// constraint).

#include <cstdint>

namespace nibble::backend::cuda::ptx {

// Orders this warp's earlier register accesses before the wgmmas that follow.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Ends the group of the wgmmas since the last commit.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Returns when at most the last kNewest groups are still under way.
template <int kNewest>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kNewest) : "memory");
}
// Makes this thread's writes to shared memory visible to wgmma.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A matrix descriptor (§9.7.15.5.1.2) without swizzle: offsets in bytes, multiples of 16. With it: layout/wgmma_b.h.
struct SharedMatrix {
  uint32_t address, leading_bytes, stride_bytes;
};
__device__ __forceinline__ uint64_t wgmma_descriptor(const SharedMatrix& m) {
  const auto field = [](uint32_t bytes) { return static_cast<uint64_t>((bytes & 0x3ffffu) >> 4); };
  return field(m.address) | field(m.leading_bytes) << 16 | field(m.stride_bytes) << 32;
}

// k16 of 16 bits; k32 of bytes, A in e5m2 and B in e4m3, whose sums are added with fewer bits (0033).
enum class WgmmaType : uint8_t { kBf16, kF16, kF8 };
template <WgmmaType kType>
struct WgmmaText {
  static constexpr char kTypes[] = "k16.f32.bf16.bf16", kOrder[] = ", 0";  // neither operand transposed
};
template <>
struct WgmmaText<WgmmaType::kF16> {
  static constexpr char kTypes[] = "k16.f32.f16.f16", kOrder[] = ", 0";
};
template <>
struct WgmmaText<WgmmaType::kF8> {
  static constexpr char kTypes[] = "k32.f32.e5m2.e4m3", kOrder[] = "";
};

// Sums of the first so many column tiles as operands, and the operands' numbers in an instruction's text.
#define NIBBLE_SUMS(how, j) how(d[j][0]), how(d[j][1]), how(d[j][2]), how(d[j][3])
#define NIBBLE_SUMS_1(how) NIBBLE_SUMS(how, 0)
#define NIBBLE_SUMS_2(how) NIBBLE_SUMS_1(how), NIBBLE_SUMS(how, 1)
#define NIBBLE_SUMS_3(how) NIBBLE_SUMS_2(how), NIBBLE_SUMS(how, 2)
#define NIBBLE_SUMS_4(how) NIBBLE_SUMS_3(how), NIBBLE_SUMS(how, 3)
#define NIBBLE_SUMS_5(how) NIBBLE_SUMS_4(how), NIBBLE_SUMS(how, 4)
#define NIBBLE_SUMS_6(how) NIBBLE_SUMS_5(how), NIBBLE_SUMS(how, 5)
#define NIBBLE_SUMS_7(how) NIBBLE_SUMS_6(how), NIBBLE_SUMS(how, 6)
#define NIBBLE_SUMS_8(how) NIBBLE_SUMS_7(how), NIBBLE_SUMS(how, 7)
#define NIBBLE_SUMS_9(how) NIBBLE_SUMS_8(how), NIBBLE_SUMS(how, 8)
#define NIBBLE_SUMS_10(how) NIBBLE_SUMS_9(how), NIBBLE_SUMS(how, 9)
#define NIBBLE_SUMS_11(how) NIBBLE_SUMS_10(how), NIBBLE_SUMS(how, 10)
#define NIBBLE_SUMS_12(how) NIBBLE_SUMS_11(how), NIBBLE_SUMS(how, 11)
#define NIBBLE_SUMS_13(how) NIBBLE_SUMS_12(how), NIBBLE_SUMS(how, 12)
#define NIBBLE_SUMS_14(how) NIBBLE_SUMS_13(how), NIBBLE_SUMS(how, 13)
#define NIBBLE_SUMS_15(how) NIBBLE_SUMS_14(how), NIBBLE_SUMS(how, 14)
#define NIBBLE_SUMS_16(how) NIBBLE_SUMS_15(how), NIBBLE_SUMS(how, 15)
#define NIBBLE_SUMS_17(how) NIBBLE_SUMS_16(how), NIBBLE_SUMS(how, 16)
#define NIBBLE_SUMS_18(how) NIBBLE_SUMS_17(how), NIBBLE_SUMS(how, 17)
#define NIBBLE_SUMS_19(how) NIBBLE_SUMS_18(how), NIBBLE_SUMS(how, 18)
#define NIBBLE_SUMS_20(how) NIBBLE_SUMS_19(how), NIBBLE_SUMS(how, 19)
#define NIBBLE_SUMS_21(how) NIBBLE_SUMS_20(how), NIBBLE_SUMS(how, 20)
#define NIBBLE_SUMS_22(how) NIBBLE_SUMS_21(how), NIBBLE_SUMS(how, 21)
#define NIBBLE_SUMS_23(how) NIBBLE_SUMS_22(how), NIBBLE_SUMS(how, 22)
#define NIBBLE_SUMS_24(how) NIBBLE_SUMS_23(how), NIBBLE_SUMS(how, 23)
#define NIBBLE_NUMBERS_1 "%0,%1,%2,%3"
#define NIBBLE_NUMBERS_2 NIBBLE_NUMBERS_1 ",%4,%5,%6,%7"
#define NIBBLE_NUMBERS_3 NIBBLE_NUMBERS_2 ",%8,%9,%10,%11"
#define NIBBLE_NUMBERS_4 NIBBLE_NUMBERS_3 ",%12,%13,%14,%15"
#define NIBBLE_NUMBERS_5 NIBBLE_NUMBERS_4 ",%16,%17,%18,%19"
#define NIBBLE_NUMBERS_6 NIBBLE_NUMBERS_5 ",%20,%21,%22,%23"
#define NIBBLE_NUMBERS_7 NIBBLE_NUMBERS_6 ",%24,%25,%26,%27"
#define NIBBLE_NUMBERS_8 NIBBLE_NUMBERS_7 ",%28,%29,%30,%31"
#define NIBBLE_NUMBERS_9 NIBBLE_NUMBERS_8 ",%32,%33,%34,%35"
#define NIBBLE_NUMBERS_10 NIBBLE_NUMBERS_9 ",%36,%37,%38,%39"
#define NIBBLE_NUMBERS_11 NIBBLE_NUMBERS_10 ",%40,%41,%42,%43"
#define NIBBLE_NUMBERS_12 NIBBLE_NUMBERS_11 ",%44,%45,%46,%47"
#define NIBBLE_NUMBERS_13 NIBBLE_NUMBERS_12 ",%48,%49,%50,%51"
#define NIBBLE_NUMBERS_14 NIBBLE_NUMBERS_13 ",%52,%53,%54,%55"
#define NIBBLE_NUMBERS_15 NIBBLE_NUMBERS_14 ",%56,%57,%58,%59"
#define NIBBLE_NUMBERS_16 NIBBLE_NUMBERS_15 ",%60,%61,%62,%63"
#define NIBBLE_NUMBERS_17 NIBBLE_NUMBERS_16 ",%64,%65,%66,%67"
#define NIBBLE_NUMBERS_18 NIBBLE_NUMBERS_17 ",%68,%69,%70,%71"
#define NIBBLE_NUMBERS_19 NIBBLE_NUMBERS_18 ",%72,%73,%74,%75"
#define NIBBLE_NUMBERS_20 NIBBLE_NUMBERS_19 ",%76,%77,%78,%79"
#define NIBBLE_NUMBERS_21 NIBBLE_NUMBERS_20 ",%80,%81,%82,%83"
#define NIBBLE_NUMBERS_22 NIBBLE_NUMBERS_21 ",%84,%85,%86,%87"
#define NIBBLE_NUMBERS_23 NIBBLE_NUMBERS_22 ",%88,%89,%90,%91"
#define NIBBLE_NUMBERS_24 NIBBLE_NUMBERS_23 ",%92,%93,%94,%95"

// d += a·b. Until the group is waited for, d and a must not be touched. For ptxas (13.0) the life of `a` ends with the
// instruction: it would let the next value have its registers while the tensor cores still read them. Name it once more
// after the wait: ptx::keep.
// `columns`, and the numbers of the operands that follow the sums: a, b, and the two strings.
#define NIBBLE_WGMMA(tiles, columns, a_numbers, b_number, types_number, order_number)                 \
  template <WgmmaType kType = WgmmaType::kBf16>                                                       \
  __device__ __forceinline__ void wgmma(float(&d)[tiles][4], const uint32_t(&a)[4], uint64_t b) {     \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" columns types_number " {" NIBBLE_NUMBERS_##tiles \
                 "}, {" a_numbers "}, " b_number ", 1, 1, 1" order_number ";"                         \
                 : NIBBLE_SUMS_##tiles("+f")                                                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "C"(WgmmaText<kType>::kTypes), \
                   "C"(WgmmaText<kType>::kOrder));                                                    \
  }
NIBBLE_WGMMA(1, "8", "%4,%5,%6,%7", "%8", "%9", "%10")
NIBBLE_WGMMA(2, "16", "%8,%9,%10,%11", "%12", "%13", "%14")
NIBBLE_WGMMA(3, "24", "%12,%13,%14,%15", "%16", "%17", "%18")
NIBBLE_WGMMA(4, "32", "%16,%17,%18,%19", "%20", "%21", "%22")
NIBBLE_WGMMA(6, "48", "%24,%25,%26,%27", "%28", "%29", "%30")
NIBBLE_WGMMA(8, "64", "%32,%33,%34,%35", "%36", "%37", "%38")
NIBBLE_WGMMA(10, "80", "%40,%41,%42,%43", "%44", "%45", "%46")
NIBBLE_WGMMA(12, "96", "%48,%49,%50,%51", "%52", "%53", "%54")
NIBBLE_WGMMA(14, "112", "%56,%57,%58,%59", "%60", "%61", "%62")
NIBBLE_WGMMA(15, "120", "%60,%61,%62,%63", "%64", "%65", "%66")
NIBBLE_WGMMA(16, "128", "%64,%65,%66,%67", "%68", "%69", "%70")
NIBBLE_WGMMA(17, "136", "%68,%69,%70,%71", "%72", "%73", "%74")
NIBBLE_WGMMA(18, "144", "%72,%73,%74,%75", "%76", "%77", "%78")
NIBBLE_WGMMA(19, "152", "%76,%77,%78,%79", "%80", "%81", "%82")
NIBBLE_WGMMA(20, "160", "%80,%81,%82,%83", "%84", "%85", "%86")
NIBBLE_WGMMA(22, "176", "%88,%89,%90,%91", "%92", "%93", "%94")
NIBBLE_WGMMA(24, "192", "%96,%97,%98,%99", "%100", "%101", "%102")
#undef NIBBLE_WGMMA

// A product of bf16 and 128 columns without strings: they change what ptxas (13.0) makes of arch/sm90/kernels.cu.
__device__ __forceinline__ void wgmma(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NIBBLE_NUMBERS_16
               "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 0;"
               : NIBBLE_SUMS_16("+f")
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// d = a·b, both by descriptor: a as 64 rows of k.
__device__ __forceinline__ void wgmma_first(float (&d)[8][4], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NIBBLE_NUMBERS_8 "}, %32, %33, 0, 1, 1, 0, 0;"
               : NIBBLE_SUMS_8("=f")
               : "l"(a), "l"(b));
}
// d += a·b, without strings, too.
__device__ __forceinline__ void wgmma(float (&d)[8][4], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NIBBLE_NUMBERS_8 "}, %32, %33, 1, 1, 1, 0, 0;"
               : NIBBLE_SUMS_8("+f")
               : "l"(a), "l"(b));
}

// d += a·b, b as rows of 64 columns each: row k of B is 128 bytes, swizzled; atoms of eight k.
__device__ __forceinline__ void wgmma_rows(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NIBBLE_NUMBERS_8
               "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
               : NIBBLE_SUMS_8("+f")
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// One half of a pair as both.
__device__ __forceinline__ uint32_t low_halves(uint32_t pair) {
  uint32_t both;
  asm("{\n .reg .b16 low, high;\n mov.b32 {low, high}, %1;\n mov.b32 %0, {low, low};\n}" : "=r"(both) : "r"(pair));
  return both;
}
__device__ __forceinline__ uint32_t high_halves(uint32_t pair) {
  uint32_t both;
  asm("{\n .reg .b16 low, high;\n mov.b32 {low, high}, %1;\n mov.b32 %0, {high, high};\n}" : "=r"(both) : "r"(pair));
  return both;
}

// The larger of either half, as unsigned numbers.
__device__ __forceinline__ uint32_t max_u16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("max.u16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

}  // namespace nibble::backend::cuda::ptx
