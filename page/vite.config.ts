import { defineConfig } from "vite";

export default defineConfig({
  base: "./",
  build: {
    outDir: "../src/rankcode/serve/page",
    emptyOutDir: false, // the exported networks are in it; `make page` removes old files
    assetsInlineLimit: 0, // the content security policy allows no data: scripts
    modulePreload: { polyfill: false },
    target: "es2022",
    chunkSizeWarningLimit: 1000,
  },
});
