// kernels/geometry.h for ctypes.
#include "kernels/geometry.h"

using namespace snapexport;

extern "C" {

void window_positions(int sink, int recent, int length, int* out) {
  for (int slot = 0; slot < sink + recent; ++slot) {
    out[slot] = window_position(slot, sink, recent, length);
  }
}

// begin and end of the eligible positions, and of what a pool sees around each of T positions.
void ranges(int sink, int recent, int K, int length, int T, int width, int* out) {
  const Range all = eligible(sink, recent, K, length);
  out[0] = all.begin;
  out[1] = all.end;
  for (int position = 0; position < T; ++position) {
    const Range pool = pool_range(position, width, all);
    out[2 + 2 * position] = pool.begin;
    out[3 + 2 * position] = pool.end;
  }
}

// Counts how often each column [group, 8 * tiles of a window] is some slice's, and returns the
// greatest number of columns in a slice.
int cover(int group, int window, int groups, int* seen) {
  const Slicing slicing(group, window, columns_that_fit(groups));
  int most = 0;
  for (int i = 0; i < slicing.count(); ++i) {
    const Slice slice = slicing.slice(i);
    most = max_of(most, slice.padded_columns());
    for (int column = 0; column < slice.columns(); ++column) {
      ++seen[slice.head(column) * slicing.head_tiles * kColumnTile + slice.row(column)];
    }
  }
  return most;
}

int fits(int groups) { return columns_that_fit(groups); }
int stride(int groups) { return query_stride(groups); }

// Bytes of shared memory for the votes that a block's pools see, and their places; 0 where too many.
int staged(int width, int* out) {
  if (!can_stage(width)) return 0;
  for (int i = 0; i < staged_votes(width); ++i) out[i] = staged_place(i);
  return staged_bytes(width);
}

void digits(uint32_t key, uint32_t* out) {
  for (int level = 0; level < kLevels; ++level) out[level] = digit(key, level);
  for (int level = 0; level <= kLevels; ++level) out[kLevels + level] = prefix(key, level);
}

}
