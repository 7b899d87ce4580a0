#include "engine/cpu/packed_matrix.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>

#include "engine/cpu/constants.h"
#include "engine/model/block_quants.h"

namespace kveval::cpu {
namespace {

void put_half(uint16_t half, uint8_t* out) { std::memcpy(out, &half, sizeof half); }

// Bits [from, from + Bits) of `count` codes into one lane of a plane.
template <int Bits>
void put_plane(const uint8_t* codes, int count, int from, uint8_t* lane) {
  constexpr int kInDword = 32 / Bits;
  for (int k = 0; k < count; k += kInDword, codes += kInDword, lane += size_t{4} * kLanes) {
    uint32_t dword = 0;
    for (int i = 0; i < kInDword; i++)
      dword |= uint32_t(codes[i] >> from & ((1 << Bits) - 1)) << code_shift(Bits, i);
    std::memcpy(lane, &dword, sizeof dword);
  }
}

void put_plane(int bits, const uint8_t* codes, int count, int from, uint8_t* lane) {
  switch (bits) {
    case 1: return put_plane<1>(codes, count, from, lane);
    case 2: return put_plane<2>(codes, count, from, lane);
    case 4: return put_plane<4>(codes, count, from, lane);
    default: return;  // no such plane
  }
}

void put_codes(const WeightLayout& layout, const uint8_t* codes, size_t lane, uint8_t* out) {
  const int count = layout.group, low = low_bits(layout), high = high_bits(layout);
  if (layout.bits == 8) {
    for (size_t k = 0; k < size_t(count); k++) out[k * kLanes + lane] = codes[k];
    return;
  }
  put_plane(low, codes, count, 0, out + 4 * lane);
  put_plane(high, codes, count, low, out + low_plane_bytes(layout) + 4 * lane);
}

// One lane of one block.
void put_block(const WeightLayout& layout, UnpackedBlock& unpacked, size_t lane, uint8_t* block) {
  put_half(unpacked.d, block + 2 * lane);
  if (layout.offset) put_half(unpacked.m, block + 32 + 2 * lane);
  if (layout.codes == Codes::iq4_nl) {  // its bits are an index among ascending values
    for (int8_t& code : std::span(unpacked.codes).first(size_t(layout.block)))
      code = int8_t(std::ranges::lower_bound(kIq4NlValues, code) - std::begin(kIq4NlValues));
  }
  for (size_t group = 0; group < size_t(groups_of(layout)); group++) {
    if (layout.factors) block[factors_at(layout) + group * kLanes + lane] = uint8_t(unpacked.factor[group]);
    if (layout.factors && layout.offset)
      block[offset_factors_at(layout) + group * kLanes + lane] = uint8_t(unpacked.offset_factor[group]);
    const auto* codes = reinterpret_cast<const uint8_t*>(unpacked.codes.data());  // signed: two's complement
    put_codes(layout, codes + group * size_t(layout.group), lane,
              block + codes_at(layout) + group * group_bytes(layout));
  }
}

// [rows][cols] elements of `size` bytes to [cols][16].
void interleave(const std::byte* rows, size_t count, size_t row_bytes, size_t size, uint8_t* out) {
  for (size_t k = 0; k * size < row_bytes; k++)
    for (size_t lane = 0; lane < count; lane++)
      std::memcpy(out + (k * kLanes + lane) * size, rows + lane * row_bytes + k * size, size);
}

void pack_rows(const Tensor& matrix, const WeightLayout& layout, size_t count, const std::byte* rows,
               uint8_t* out) {
  const TypeInfo& info = info_of(matrix.type);
  const size_t bytes = row_bytes(matrix);
  std::memset(out, 0, row_block_bytes(layout, int(cols(matrix))));
  if (is_float(layout)) return interleave(rows, count, bytes, size_t(info.block_bytes), out);
  UnpackedBlock unpacked{};
  for (size_t at = 0; at < bytes; at += size_t(info.block_bytes), out += block_bytes(layout)) {
    for (size_t lane = 0; lane < count; lane++) {
      unpack_block(matrix.type, rows + lane * bytes + at, unpacked);
      put_block(layout, unpacked, lane, out);
    }
  }
}

// A piece of a product: enough columns that copying A's rows into the kernel's blocks (once a piece) stays
// below 3 % of the work, or, for a few rows, enough weights (32,768: microseconds) to be worth a thread.
int columns_per_piece(int m, int cols) {
  return m > kGemmFewRows ? 256 : std::max(kLanes, 32768 / std::max(1, cols));
}

// Whole vectors are written: a last block that does not fit between c's rows goes through a buffer. These are
// the columns that do fit.
int direct_columns(const Product& product) {
  const int padded = product.matrix.padded_rows();
  return product.ldc >= size_t(padded) ? padded : product.matrix.rows / kLanes * kLanes;
}

int pieces_of(const Product& product, int m, int threads) {
  if (product.matrix.rows <= 0) return 0;
  return std::clamp(direct_columns(product) / columns_per_piece(m, product.matrix.cols), 1, 2 * threads);
}

void multiply_piece(const Kernels& kernels, const Product& product, int piece, int pieces, const float* a,
                    int m, size_t lda) {
  const auto& [matrix, c, ldc] = product;
  static thread_local Buffer scratch;
  scratch.reserve(gemm_scratch_floats(m, matrix.cols));
  const int direct = direct_columns(product);
  const int pairs = (direct + 2 * kLanes - 1) / (2 * kLanes);  // pieces are cut between pairs of blocks
  const auto column = [&](int i) { return std::min(direct, int(int64_t(pairs) * i / pieces) * 2 * kLanes); };
  const int begin = column(piece), end = column(piece + 1);
  if (begin < end)
    kernels.gemm(matrix.type, matrix.row_block(0), begin, end, matrix.cols, a, m, lda, c, ldc,
                 scratch.data());
  if (piece + 1 < pieces || direct == matrix.padded_rows()) return;

  static thread_local Buffer tail;
  tail.reserve(size_t(m) * kLanes);
  kernels.gemm(matrix.type, matrix.row_block(direct), 0, kLanes, matrix.cols, a, m, lda, tail.data(), kLanes,
               scratch.data());
  for (int i = 0; i < m; i++)
    std::memcpy(c + size_t(i) * ldc + direct, tail.data() + size_t(i) * kLanes,
                size_t(matrix.rows - direct) * sizeof(float));
}

}  // namespace

const uint8_t* PackedMatrix::row_block(int row) const {
  return reinterpret_cast<const uint8_t*>(bytes.data()) +
         size_t(row / kLanes) * row_block_bytes(layout_of(type), cols);
}

size_t PackedMatrix::byte_size() const {
  return size_t(padded_rows() / kLanes) * row_block_bytes(layout_of(type), cols);
}

PackedMatrix pack(const Tensor& matrix, ThreadPool& pool) {
  PackedMatrix packed{matrix.type, int(rows(matrix)), int(cols(matrix)), {}};
  const WeightLayout layout = layout_of(packed.type);
  packed.bytes.reserve(packed.byte_size() / sizeof(float));
  auto* const out = reinterpret_cast<uint8_t*>(packed.bytes.data());
  pool.run(packed.padded_rows() / kLanes, [&](int i, int) {
    const size_t count = size_t(std::min(kLanes, packed.rows - i * kLanes));
    pack_rows(matrix, layout, count, matrix.data.data() + size_t(i) * kLanes * row_bytes(matrix),
              out + size_t(i) * row_block_bytes(layout, packed.cols));
  });
  return packed;
}

void matmul(const Kernels& kernels, ThreadPool& pool, const PackedMatrix& matrix, const float* a, int m,
            size_t lda, float* c, size_t ldc) {
  const Product product{matrix, c, ldc};
  matmul(kernels, pool, {&product, 1}, a, m, lda);
}

void matmul(const Kernels& kernels, ThreadPool& pool, std::span<const Product> products, const float* a,
            int m, size_t lda) {
  if (m <= 0) return;
  int pieces = 0;
  for (const Product& product : products) pieces += pieces_of(product, m, pool.size());
  pool.run(pieces, [&](int piece, int) {
    for (const Product& product : products) {
      const int own = pieces_of(product, m, pool.size());
      if (piece < own) return multiply_piece(kernels, product, piece, own, a, m, lda);
      piece -= own;
    }
  });
}

}  // namespace kveval::cpu
