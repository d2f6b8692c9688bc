/* The sum of one float array over all ranks by MPI_Allreduce:
 *   mpirun -n N all_reduce_mpi BYTES ...
 * Rank 0 prints the median and the least time for each size; a barrier precedes each sum. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { kBlockSums = 20, kMostSums = 20000 };
static const double kSecondsASize = 1.0;

static int compare(const void* left, const void* right) {
  const double a = *(const double*)left, b = *(const double*)right;
  return (a > b) - (a < b);
}

static void* allocate(size_t count, size_t size) {
  void* memory = calloc(count, size);
  if (memory == NULL) {
    fprintf(stderr, "all_reduce_mpi: no memory for %zu bytes\n", count * size);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return memory;
}

static double sum_once(const float* input, float* output, int elements) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = MPI_Wtime();
  MPI_Allreduce(input, output, elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  return (MPI_Wtime() - start) * 1e6;
}

/* The same on all ranks, whatever their own clocks say. */
static int rank_0_says(int answer) {
  MPI_Bcast(&answer, 1, MPI_INT, 0, MPI_COMM_WORLD);
  return answer;
}

static void time_size(size_t bytes, int rank, int ranks) {
  const int elements = bytes < 4 ? 1 : (int)(bytes / 4);
  float* input = allocate((size_t)elements, sizeof *input);
  float* output = allocate((size_t)elements, sizeof *output);
  double* microseconds = allocate(kMostSums, sizeof *microseconds);
  for (int i = 0; i < elements; ++i) input[i] = (float)(rank + 1);

  for (int i = 0; i < 2; ++i) sum_once(input, output, elements);
  const double end = MPI_Wtime() + kSecondsASize;
  int count = 0;
  while (rank_0_says(MPI_Wtime() < end && count < kMostSums)) {
    for (int i = 0; i < kBlockSums; ++i) microseconds[count++] = sum_once(input, output, elements);
  }
  if (output[elements - 1] != (float)(ranks * (ranks + 1) / 2)) {
    fprintf(stderr, "all_reduce_mpi: wrong sum on rank %d\n", rank);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  if (rank == 0) {
    qsort(microseconds, (size_t)count, sizeof *microseconds, compare);
    printf("%zu bytes median %.2f us min %.2f us\n", bytes, microseconds[count / 2],
           microseconds[0]);
    fflush(stdout);
  }
  free(input);
  free(output);
  free(microseconds);
}

int main(int argc, char** argv) {
  int rank, ranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (int i = 1; i < argc; ++i) time_size(strtoull(argv[i], NULL, 10), rank, ranks);
  MPI_Finalize();
  return 0;
}
