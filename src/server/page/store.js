"use strict";
// Conversations in this browser: one record each in IndexedDB. Tabs tell each other what they stored; none overwrites
// another's messages, since each save reads the record and lays this tab's changed messages over it, in one transaction.

const store = (() => {
  const opening = new Promise((resolve, reject) => {
    const request = indexedDB.open("nibble", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("conversations", {keyPath: "id"});
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  opening.catch(() => {});  // each use says so

  // work(records, give): the promise holds what was given when everything is on disk.
  async function within(mode, work) {
    const db = await opening;
    return new Promise((resolve, reject) => {
      const transaction = db.transaction("conversations", mode);
      let result;
      transaction.oncomplete = () => resolve(result);
      transaction.onabort = () => reject(transaction.error ?? new Error("aborted"));
      work(transaction.objectStore("conversations"), (value) => { result = value; });
    });
  }
  const reading = (ask) => within("readonly", (records, give) => { ask(records).onsuccess = ({target}) => give(target.result); });
  function each(see) {
    return within("readonly", (records) => {
      records.openCursor().onsuccess = ({target: {result: cursor}}) => {
        if (!cursor) return;
        see(cursor.value);
        cursor.continue();
      };
    });
  }
  const lower = (text) => text.toLocaleLowerCase();

  return {
    get: (id) => reading((records) => records.get(id)),
    all: () => reading((records) => records.getAll()),
    remove: (id) => within("readwrite", (records) => records.delete(id)),
    async heads() {
      const out = [];
      await each(({id, title, updated}) => out.push({id, title, updated}));
      return out;
    },
    // The ids of the conversations with all of these words, in the title or anywhere in the messages.
    async search(text) {
      const words = lower(text).split(/\s+/).filter(Boolean);
      const found = new Set();
      await each((record) => {
        const all = lower([record.title, ...record.messages.map((m) => m.content)].join("\n"));
        if (words.every((word) => all.includes(word))) found.add(record.id);
      });
      return found;
    },
    // False: the record was deleted meanwhile, by another tab.
    async save(c) {
      const changed = c.changed;
      c.changed = new Set();
      c.saves++;
      let there = true;
      try {
        await within("readwrite", (records) => {
          records.get(c.id).onsuccess = ({target}) => {
            there = Boolean(target.result) || !c.kept;
            if (!there) return;
            records.put(mergedRecord(c, target.result, changed));
            c.kept = true;
          };
        });
      } catch (error) {
        for (const id of changed) c.changed.add(id);
        throw error;
      }
      if (there) c.headed = false;
      return there;
    },
    // A conversation of a file: what is here already stays as it is.
    async add(c) {
      await within("readwrite", (records) => {
        records.get(c.id).onsuccess = ({target}) => {
          const stored = target.result;
          const here = new Set(stored?.messages.map((m) => m.id));
          const record = mergedRecord(c, stored, new Set(c.messages.map((m) => m.id).filter((id) => !here.has(id))));
          record.chosen = {...c.chosen, ...stored?.chosen};
          records.put(record);
        };
      });
    },
  };
})();

// ---- Saving ----
const tabs = new BroadcastChannel("nibble");
const kSaveEvery_ms = 300;
let storageFailed = false;
async function keep(c) {
  clearTimeout(c.saving);
  c.saving = 0;
  if (c.gone) return;
  try {
    if (await store.save(c)) {
      tabs.postMessage({kind: "saved", head: {id: c.id, title: c.title, updated: c.updated}});
      storageFailed = false;
    } else forget(c.id);
  } catch (error) {
    if (storageFailed) return;
    storageFailed = true;
    warn(error?.name === "QuotaExceededError" ? "This browser's storage is full: the conversation is not kept. Delete or export some." : "This browser stores nothing for this page: conversations are lost when the tab closes.");
  }
}
// While an answer is written: not at each word.
function keepSoon(c) { c.saving ||= setTimeout(() => keep(c), kSaveEvery_ms); }
