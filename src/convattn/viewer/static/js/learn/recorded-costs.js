// Measured costs, out of docs/results/{layers,sequences}.json; scripts/tour_costs.py writes this file.

export const RECORDED_COSTS = {
  machine: "Intel(R) Xeon(R) Processor, AVX512, one thread, float32",
  torch: "2.15.0",
  charts: [
    {
      name: "images: time",
      unit: "ms per image",
      note: "400 channels, 9 heads, forward, time of one image. All pairs and the convolution ran on 25, 4 and 1 images.",
      lines: [
        {
          name: "all pairs",
          points: [
            [256, 19.65],
            [1024, 158.3],
            [4096, 3320.0],
          ],
        },
        {
          name: "any function of the offset (FFT)",
          points: [
            [256, 64.06],
            [1024, 136.4],
            [4096, 519.8],
            [16384, 2072.0],
            [50176, 13200.0],
          ],
        },
        {
          name: "separable heads",
          points: [
            [256, 19.6],
            [1024, 57.96],
            [4096, 216.8],
            [16384, 879.3],
            [50176, 3000.0],
          ],
        },
        {
          name: "hard heads",
          points: [
            [256, 11.88],
            [1024, 37.62],
            [4096, 125.2],
            [16384, 533.7],
            [50176, 1849.0],
          ],
        },
        {
          name: "convolution 3 × 3",
          points: [
            [256, 8.885],
            [1024, 31.23],
            [4096, 123.5],
          ],
        },
      ],
    },
    {
      name: "images: memory",
      unit: "times that of the convolution",
      note: "400 channels, 9 heads, forward: weights and working memory, divided by those of nn.Conv2d 3 × 3.",
      lines: [
        {
          name: "all pairs",
          points: [
            [256, 5.789],
            [1024, 6.819],
            [4096, 57.83],
          ],
        },
        {
          name: "separable heads",
          points: [
            [256, 0.7982],
            [1024, 0.7275],
            [4096, 0.8166],
          ],
        },
        {
          name: "convolution 3 × 3",
          points: [
            [256, 1.0],
            [1024, 1.0],
            [4096, 1.0],
          ],
        },
      ],
    },
    {
      name: "sequences: time",
      unit: "ms",
      note: "16 channels, 9 heads or taps, forward, one sequence.",
      lines: [
        {
          name: "nine soft heads",
          points: [
            [1024, 3.926],
            [4096, 4.991],
            [16384, 16.67],
            [65536, 52.55],
          ],
        },
        {
          name: "nine hard heads",
          points: [
            [1024, 2.092],
            [4096, 2.966],
            [16384, 10.06],
            [65536, 31.52],
          ],
        },
        {
          name: "convolution, 9 taps",
          points: [
            [1024, 0.2427],
            [4096, 0.5613],
            [16384, 2.182],
            [65536, 6.695],
          ],
        },
        {
          name: "convolution, N taps",
          points: [
            [1024, 0.5625],
            [4096, 1.57],
            [16384, 7.529],
            [65536, 43.87],
          ],
        },
      ],
    },
    {
      name: "sequences: memory",
      unit: "MiB",
      note: "16 channels, 9 heads or taps, forward, one sequence.",
      lines: [
        {
          name: "nine soft heads",
          points: [
            [1024, 1.642],
            [4096, 8.4],
            [16384, 12.99],
            [65536, 31.93],
          ],
        },
        {
          name: "nine hard heads",
          points: [
            [1024, 1.095],
            [4096, 8.345],
            [16384, 10.29],
            [65536, 20.02],
          ],
        },
        {
          name: "convolution, 9 taps",
          points: [
            [1024, 0.6378],
            [4096, 7.368],
            [16384, 8.388],
            [65536, 14.4],
          ],
        },
        {
          name: "convolution, N taps",
          points: [
            [1024, 0.7734],
            [4096, 2.09],
            [16384, 9.547],
            [65536, 37.67],
          ],
        },
      ],
    },
  ],
};
