/* Runs cases made of random numbers, the same in each run:
 *
 *   --runs=N       so many (by default 100000)
 *   --seconds=N    instead: for so long, with numbers that no run had before
 *   --watched      with all that watches calls
 *   --seed=N       the first; a case that fails says its own, and --seed=N --runs=1 is that case alone
 *
 * or the same in FUZZ_OPTIONS.
 *
 * A case that depends on cases before it, through requests that they started, is found again by the first seed of the
 * run. Returns what main returns.
 */
#ifndef MPIXLA_TEST_FUZZ_MAIN_H
#define MPIXLA_TEST_FUZZ_MAIN_H

int fuzz_main(int argc, char **argv);

#endif
