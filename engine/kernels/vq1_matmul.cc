#include "engine/kernels/vq1_matmul.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/vq1_matmul.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "engine/kernels/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {
namespace {

constexpr size_t kGroup = 16;     // columns of a byte, or of one of every stage
constexpr size_t kEntries = 256;  // of the codebook
// Bytes of a row whose tables, 1 KiB each, stay in the first level cache while the rows pass by.
constexpr size_t kTileBytes = 16;
// The same for tables of sixteen inputs, 16 KiB each, and the rows whose sums lie beside them.
constexpr size_t kLaneBytes = 2;
constexpr size_t kLaneRows = 1024;

// Register tiles of tables in the making: T groups by E vectors of sixteen entries.
#if HWY_TARGET == HWY_AVX3
constexpr size_t kTileTables = 4;
constexpr size_t kTileVectors = 4;
#else
constexpr size_t kTileTables = 2;
constexpr size_t kTileVectors = kV16Parts == 4 ? 1 : 2;
#endif

// What follows the entries of a complete codebook: column after column, [16][256].
HWY_INLINE const float* ColumnsOf(const float* codebook) {
  return codebook + kEntries * kGroup;
}

// Tables of T groups of x, with one codebook; they are `step` floats apart.
template <size_t T>
HWY_INLINE void BuildTables(const float* codebook, const float* x, size_t step, float* tables) {
  const float* columns = ColumnsOf(codebook);
  for (size_t k = 0; k < kEntries; k += 16 * kTileVectors) {
    V16 sum[T][kTileVectors];
    for (size_t t = 0; t < T; ++t) {
      for (size_t v = 0; v < kTileVectors; ++v) sum[t][v] = Zero16();
    }
    for (size_t j = 0; j < kGroup; ++j) {
      V16 weights[kTileVectors];
      for (size_t v = 0; v < kTileVectors; ++v) {
        weights[v] = LoadAligned16(columns + j * kEntries + k + 16 * v);
      }
      for (size_t t = 0; t < T; ++t) {
        const V16 value = Set16(x[t * kGroup + j]);
        for (size_t v = 0; v < kTileVectors; ++v) sum[t][v] = Fma16(weights[v], value, sum[t][v]);
      }
    }
    for (size_t t = 0; t < T; ++t) {
      for (size_t v = 0; v < kTileVectors; ++v) {
        Store16(sum[t][v], tables + t * step + k + 16 * v);
      }
    }
  }
}

// Tables of groups of x, [groups][stages][256].
void BuildGroups(const float* codebook, size_t stages, const float* x, size_t groups,
                 float* tables) {
  const size_t step = stages * kEntries;
  for (size_t s = 0; s < stages; ++s) {
    const float* own = codebook + s * kVq1CodebookFloats;
    float* out = tables + s * kEntries;
    size_t g = 0;
    for (; g + kTileTables <= groups; g += kTileTables) {
      BuildTables<kTileTables>(own, x + g * kGroup, step, out + g * step);
    }
    for (; g < groups; ++g) BuildTables<1>(own, x + g * kGroup, step, out + g * step);
  }
}

// Adds what the first `count` bytes of R rows stand for to the rows' sums. Rows are `stride` bytes
// apart; every byte has a table of its own.
template <size_t R>
HWY_INLINE void SweepRows(const uint8_t* bytes, size_t stride, const float* tables, size_t count,
                          float* sums) {
  float sum[R];
  for (size_t r = 0; r < R; ++r) sum[r] = sums[r];
  for (size_t b = 0; b < count; ++b) {
    for (size_t r = 0; r < R; ++r) sum[r] += tables[b * kEntries + bytes[r * stride + b]];
  }
  for (size_t r = 0; r < R; ++r) sums[r] = sum[r];
}

void TablesOne(const ExpertJob& job, size_t input, size_t begin, size_t end) {
  const ExpertMatrix& w = job.w;
  const size_t groups = w.cols / kGroup;
  const size_t row_bytes = groups * w.stages;
  const size_t tile = kTileBytes / w.stages;  // groups
  const float* x = job.x + input * job.ldx;
  float* y = job.y + input * job.ldy;
  const float* made = nullptr;
  if (job.tables.values != nullptr) {
    made = job.tables.values + job.tables.row(input) * Vq1TableFloats(w.cols, w.stages);
  }
  std::fill(y + begin, y + end, 0.0f);
  alignas(64) float own[kTileBytes * kEntries];
  for (size_t g = 0; g < groups; g += tile) {
    const size_t count = std::min(tile, groups - g);
    if (made == nullptr) BuildGroups(w.codebook, w.stages, x + g * kGroup, count, own);
    const float* tables = made == nullptr ? own : made + g * w.stages * kEntries;
    const uint8_t* bytes = w.packed + g * w.stages;
    size_t row = begin;
    for (; row + 8 <= end; row += 8) {
      SweepRows<8>(bytes + row * row_bytes, row_bytes, tables, count * w.stages, y + row);
    }
    for (; row < end; ++row) {
      SweepRows<1>(bytes + row * row_bytes, row_bytes, tables, count * w.stages, y + row);
    }
  }
}

void GatherOne(const ExpertJob& job, size_t input, size_t begin, size_t end) {
  const ExpertMatrix& w = job.w;
  const size_t row_bytes = w.cols / kGroup * w.stages;
  const float* x = job.x + input * job.ldx;
  float* y = job.y + input * job.ldy;
  for (size_t row = begin; row < end; ++row) {
    float total = 0;
    for (size_t b = 0; b < row_bytes; ++b) {
      const float* entries = w.codebook + b % w.stages * kVq1CodebookFloats;
      const float* entry = entries + size_t{w.packed[row * row_bytes + b]} * kGroup;
      const float* values = x + b / w.stages * kGroup;
      float sum = 0;
      for (size_t j = 0; j < kGroup; ++j) sum = std::fma(entry[j], values[j], sum);
      total += sum;
    }
    y[row] = total;
  }
}

// The tables of one group for sixteen inputs: out[k] has their sums with entry k. xs[j]: column j
// of the inputs.
void BuildLanes(const float* codebook, const V16 (&xs)[kGroup], float* out) {
  constexpr size_t kAtOnce = 4;
  for (size_t k = 0; k < kEntries; k += kAtOnce) {
    V16 sum[kAtOnce];
    for (V16& s : sum) s = Zero16();
    for (size_t j = 0; j < kGroup; ++j) {
      for (size_t i = 0; i < kAtOnce; ++i) {
        sum[i] = Fma16(Set16(codebook[(k + i) * kGroup + j]), xs[j], sum[i]);
      }
    }
    for (size_t i = 0; i < kAtOnce; ++i) Store16(sum[i], out + (k + i) * 16);
  }
}

// Columns [first, first + 16) of inputs [input, input + n), n <= 16, one input per lane.
HWY_INLINE void LoadColumns(const ExpertJob& job, size_t input, size_t n, size_t first,
                            V16 (&xs)[kGroup]) {
  alignas(64) float columns[kGroup][16] = {};
  for (size_t i = 0; i < n; ++i) {
    const float* x = job.x + (input + i) * job.ldx + first;
    for (size_t j = 0; j < kGroup; ++j) columns[j][i] = x[j];
  }
  for (size_t j = 0; j < kGroup; ++j) xs[j] = LoadAligned16(columns[j]);
}

// Adds what B bytes of every row stand for to the sums of sixteen inputs, [rows][16].
template <size_t B>
void SweepLanes(const uint8_t* bytes, size_t stride, const float* tables, size_t rows,
                float* sums) {
  for (size_t row = 0; row < rows; ++row) {
    V16 sum = LoadAligned16(sums + row * 16);
    for (size_t b = 0; b < B; ++b) {
      const size_t entry = bytes[row * stride + b];
      sum = Add16(sum, LoadAligned16(tables + (b * kEntries + entry) * 16));
    }
    Store16(sum, sums + row * 16);
  }
}

// Inputs [input, input + n), n <= 16, and at most kLaneRows rows.
void LanesTile(const ExpertJob& job, size_t input, size_t n, size_t begin, size_t end) {
  static_assert(kLaneBytes == 2);
  const ExpertMatrix& w = job.w;
  const size_t row_bytes = w.cols / kGroup * w.stages;
  const size_t rows = end - begin;
  alignas(64) float tables[kLaneBytes * kEntries * 16];
  alignas(64) float sums[kLaneRows * 16];
  std::fill_n(sums, rows * 16, 0.0f);
  for (size_t b = 0; b < row_bytes; b += kLaneBytes) {
    const size_t count = std::min(kLaneBytes, row_bytes - b);
    for (size_t i = 0; i < count; ++i) {
      V16 xs[kGroup];
      LoadColumns(job, input, n, (b + i) / w.stages * kGroup, xs);
      BuildLanes(w.codebook + (b + i) % w.stages * kVq1CodebookFloats, xs,
                 tables + i * kEntries * 16);
    }
    const uint8_t* bytes = w.packed + begin * row_bytes + b;
    count == kLaneBytes ? SweepLanes<kLaneBytes>(bytes, row_bytes, tables, rows, sums)
                        : SweepLanes<1>(bytes, row_bytes, tables, rows, sums);
  }
  for (size_t i = 0; i < n; ++i) {
    float* y = job.y + (input + i) * job.ldy;
    for (size_t row = 0; row < rows; ++row) y[begin + row] = sums[row * 16 + i];
  }
}

}  // namespace

void Vq1Tables(const float* codebook, size_t stages, const float* x, size_t cols, float* tables) {
  BuildGroups(codebook, stages, x, cols / kGroup, tables);
}

void Vq1As(Vq1Form form, const ExpertJob& job, size_t begin, size_t end) {
  if (form == Vq1Form::kLanes) {
    for (size_t row = begin; row < end; row += kLaneRows) {
      for (size_t input = 0; input < job.n; input += 16) {
        LanesTile(job, input, std::min<size_t>(16, job.n - input), row,
                  std::min(end, row + kLaneRows));
      }
    }
    return;
  }
  for (size_t input = 0; input < job.n; ++input) {
    form == Vq1Form::kGather ? GatherOne(job, input, begin, end)
                             : TablesOne(job, input, begin, end);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mk {

HWY_EXPORT(Vq1Tables);
HWY_EXPORT(Vq1As);

namespace {

// What the forms cost, measured with kernels_bench (BM_Vq1MatMul, AVX-512), in look-ups of a byte
// of a row: making a table, making tables of sixteen lanes, and a look-up in those.
constexpr size_t kTableCost = 180;
constexpr size_t kLanesCost = 2900;
constexpr size_t kLanesLookUp = 3;
// Fewer rows do not pay for tables: gathering takes about thirty look-ups per byte.
constexpr size_t kRowsForTables = 6;

Vq1Form FormFor(const ExpertJob& job, size_t rows) {
  if (job.tables.values != nullptr) return Vq1Form::kTables;
  if (rows < kRowsForTables) return Vq1Form::kGather;
  const size_t by_tables = job.n * (kTableCost + rows);
  const size_t by_lanes = (job.n + 15) / 16 * (kLanesCost + kLanesLookUp * rows);
  return by_tables <= by_lanes ? Vq1Form::kTables : Vq1Form::kLanes;
}

}  // namespace

void CompleteVq1Codebook(float* codebook) {
  constexpr size_t kColumns = 16;
  constexpr size_t kEntries = 256;
  float* columns = codebook + kEntries * kColumns;
  for (size_t j = 0; j < kColumns; ++j) {
    for (size_t k = 0; k < kEntries; ++k) columns[j * kEntries + k] = codebook[k * kColumns + j];
  }
}

void BuildVq1Tables(const float* codebook, size_t stages, const float* x, size_t cols,
                    float* tables) {
  HWY_DYNAMIC_DISPATCH(Vq1Tables)(codebook, stages, x, cols, tables);
}

void Vq1MatMulAs(Vq1Form form, const ExpertJob& job, size_t row_begin, size_t row_end) {
  HWY_DYNAMIC_DISPATCH(Vq1As)(form, job, row_begin, row_end);
}

void Vq1MatMul(const ExpertJob& job, size_t row_begin, size_t row_end) {
  Vq1MatMulAs(FormFor(job, row_end - row_begin), job, row_begin, row_end);
}

}  // namespace mk
#endif  // HWY_ONCE
